"""A guess held against the engine: right, not quite, none yet, and never an error."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from nbengine.debug.lesson import Picture, predict, same, shown


def test_no_guess_yet_says_what_to_think_about() -> None:
    outcome = predict("Blocks that r1 holds", None, 3, think="A block holds 4 tokens.")
    assert outcome.is_right is None
    assert repr(outcome) == "? Blocks that r1 holds\n  The engine says 3.\n  A block holds 4 tokens."


def test_right_and_not_quite() -> None:
    right = predict("Blocks", 3, 3, think="A block holds 4 tokens.")
    assert right.is_right is True and repr(right) == "✓ Blocks\n  Right: 3."
    wrong = predict("Blocks", 46_080, 1_234, think="Think again.")
    assert wrong.is_right is False
    assert repr(wrong) == "✗ Blocks\n  Not quite: you said 46,080, the engine says 1,234.\n  Think again."


def test_the_html_says_the_same_and_is_escaped() -> None:
    bundle = predict("a < b?", "<script>", True)._repr_mimebundle_()
    assert "a &lt; b?" in bundle["text/html"] and "<script>" not in bundle["text/html"]
    assert "Not quite: you said &lt;script&gt;, the engine says yes." in bundle["text/html"]


@pytest.mark.parametrize(
    ("guess", "truth"),
    [
        (3, 3),
        ("3", 3),
        (3.0, 3),
        ("46,080", 46080),
        (np.int64(3), 3),
        (0.1 + 0.2, 0.3),
        ("R2 ", "r2"),
        ("yes", True),
        (True, True),
        ("no", False),
        ("r2", ["r2"]),
        (["r2"], "r2"),
        ([1, 2], (1, 2)),
        (["r2", "r1"], {"r1", "r2"}),
        ({"r1"}, {"r1"}),
        ("r1", {"r1"}),
        ([], []),
        ({"r1": 2}, {"r1": 2}),
        (np.array([1, 2]), [1, 2]),
    ],
)
def test_what_counts_as_the_same(guess: object, truth: object) -> None:
    assert same(guess, truth)


class Awkward:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("guess", "truth"),
    [
        (4, 3),
        ("three", 3),
        (1, True),
        (True, 1),
        ([2, 1], [1, 2]),
        (["r1"], {"r1", "r2"}),
        ([1], [1, 2]),
        ("r1", 3),
        (Awkward(), 3),
        ([Awkward()], {"r1"}),
        (print, [1]),
        (3, None),
        (float("nan"), 3),
    ],
)
def test_what_does_not_and_nothing_raises(guess: object, truth: object) -> None:
    assert not same(guess, truth)
    assert "Not quite" in repr(predict("?", guess, truth))


def test_values_in_words() -> None:
    assert shown({"r2", "r1"}) == "r1, r2" and shown([3, 1]) == "3, 1" and shown([]) == "none"
    assert shown({"r1": 16, "r2": 1}) == "r1: 16, r2: 1"
    assert shown(0.123456) == "0.1235" and shown(None) == "nothing"


def test_a_picture_has_words() -> None:
    picture = Picture(Figure(figsize=(1, 1)), "two lanes")
    data, metadata = picture._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG") and data["text/plain"] == "two lanes" == repr(picture)
    assert metadata["image/png"]["alt"] == "two lanes"
