"""R102: state by colour alone, which not everybody sees. The colours of requests differ for people without green
cones too, and each state of a block has a name and a shape. (Roles, labels, arrow keys, the spoken sentence:
tests/widgets/test_in_browser.py.)"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from tests.reports.test_R101_themes import STYLES, colour, tokens

# Machado, Oliveira and Fernandes (2009): how linear RGB looks without green cones.
DEUTERANOPIA = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])
TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
TO_OKLAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
APART = 0.05


def oklab(rgb: tuple[int, ...], seen: np.ndarray) -> np.ndarray:
    share = np.array(rgb) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return TO_OKLAB @ np.cbrt(TO_CONES @ np.clip(seen @ linear, 0, 1))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("seen", [np.eye(3), DEUTERANOPIA], ids=["all cones", "no green cones"])
def test_no_two_requests_look_alike(dark: bool, seen: np.ndarray) -> None:
    values = tokens(dark)
    palette = [oklab(colour(values[f"c{i}"]), seen) for i in range(8)]
    nearest = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(palette, 2))
    assert nearest >= APART - 0.002, nearest  # the matrices above are rounded


def test_each_state_of_a_block_has_a_word_and_a_look_of_its_own() -> None:
    words = (STYLES / "panes" / "block_words.ts").read_text()
    kinds = dict(re.findall(r'(null|empty|cached|used|shared): "([^"]+)"', words))
    assert set(kinds) == {"null", "empty", "cached", "used", "shared"} and len(set(kinds.values())) == 5
    drawing = Path(STYLES / "draw" / "blocks.ts").read_text()
    for shape in ("setLineDash", 'kind === "shared"', 'kind === "null"'):
        assert shape in drawing
