"""R101: black on dark, glaring boxes, colours that only JupyterLab defines. Every colour is a token with a value of
its own for light and for dark, and text can be read on the ground in both. (axe-core measures all text of the drawn
Lab in both schemes, and forced colours: tests/widgets/test_access.py.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STYLES = Path(__file__).parents[2] / "widgets" / "src"
TEXT = ("ink", "ink2", "accent", "warn", "bad", "ok")
Rgb = tuple[int, ...]


def tokens(dark: bool) -> dict[str, str]:
    """The tokens of tokens.css as a host without variables of its own sees them."""
    light, rest = (STYLES / "tokens.css").read_text().split('.nbe-lab[data-theme="dark"]')
    found = dict(re.findall(r"--nbe-([\w-]+): ([^;]+);", light))
    if dark:
        found |= dict(re.findall(r"--nbe-([\w-]+): ([^;]+);", rest.split("@media")[0]))
    return found


def colour(value: str) -> Rgb:
    """A colour, or what stands in for the host's variable."""
    (code,) = re.findall(r"#([0-9a-f]{3,6})", value)
    digits = code if len(code) == 6 else "".join(digit * 2 for digit in code)
    return tuple(int(digits[at : at + 2], 16) for at in (0, 2, 4))


def luminance(rgb: Rgb) -> float:
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Rgb, other: Rgb) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read_without_any_variable_of_the_host(dark: bool) -> None:
    values = tokens(dark)
    ground = colour(values["bg"])
    assert (luminance(ground) < 0.2) == dark
    for name in TEXT:
        assert contrast(colour(values[name]), ground) >= 4.5, name


def test_colours_stand_among_the_tokens_and_nowhere_else() -> None:
    for file in [*STYLES.glob("*.css"), *STYLES.rglob("*.ts*")]:
        text = re.sub(r"/\*.*?\*/|//.*", "", file.read_text(), flags=re.S if file.suffix == ".css" else 0)
        if file.name != "tokens.css":
            assert not re.findall(r"(?<![\w&])#[0-9a-fA-F]{3,8}\b(?!\()", text), file.name
    for file in STYLES.glob("*.css"):
        used = re.findall(r"var\((--jp-[\w-]+)(,?)", file.read_text())
        assert all(comma for _name, comma in used), f"{file.name}: a host's variable without a fallback"


def test_a_host_without_a_word_on_themes_is_asked_for_its_scheme() -> None:
    assert "prefers-color-scheme: dark" in (STYLES / "draw" / "theme.ts").read_text()
