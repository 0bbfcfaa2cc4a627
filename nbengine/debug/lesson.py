"""For the course: a question whose answer the engine knows, and a picture with words."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Set
from typing import Any

from matplotlib.figure import Figure


class Prediction:
    """A guess beside what the engine says. is_right: None as long as there is no guess."""

    def __init__(self, question: str, guess: object, truth: object, think: str) -> None:
        self.question = question
        self.is_right = None if guess is None else same(guess, truth)
        said, is_so = shown(guess), shown(truth)
        if self.is_right is None:
            self.mark, self.verdict = "?", f"The engine says {is_so}."
        elif self.is_right:
            self.mark, self.verdict = "✓", f"Right: {is_so}."
        else:
            self.mark, self.verdict = "✗", f"Not quite: you said {said}, the engine says {is_so}."
        self.think = "" if self.is_right else think

    def __repr__(self) -> str:
        return "\n".join(
            filter(None, (f"{self.mark} {self.question}", f"  {self.verdict}", self.think and f"  {self.think}"))
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        parts = [f"<b>{self.mark} {html.escape(self.question)}</b>", html.escape(self.verdict), html.escape(self.think)]
        body = "<br>".join(filter(None, parts))
        return {"text/plain": repr(self), "text/html": f"<p role='note'>{body}</p>"}


def predict(question: str, guess: object, truth: object, think: str = "") -> Prediction:
    """Hold a guess against the engine. Make it the last line of a cell.

    guess: None for no guess yet. A number, a name, True or "yes", a list (its order counts), a set (it does not).
    truth: read from the engine, after the step in question. think: shown as long as the guess is not right.
    Never raises, whatever the guess is.
    """
    return Prediction(question, guess, truth, think)


def same(guess: object, truth: object) -> bool:
    """Whether a person who wrote `guess` meant `truth`: "3" is 3, "yes" is True, "R1" is "r1", a list of one is the one."""
    try:
        return _equal(_plain(guess), _plain(truth))
    except Exception:  # whatever was typed there, a lesson goes on
        return False


def _equal(guess: Any, truth: Any) -> bool:
    if isinstance(truth, set) and isinstance(guess, list):
        guess = set(guess)
    if isinstance(truth, list | set) != isinstance(guess, list | set):
        guess, truth = ([x] if not isinstance(x, list | set) else list(x) for x in (guess, truth))
    if isinstance(guess, list) and isinstance(truth, list):
        return len(guess) == len(truth) and all(map(_equal, guess, truth))
    if isinstance(guess, bool) or isinstance(truth, bool):
        return guess is truth
    if isinstance(guess, float) and isinstance(truth, float):
        return math.isclose(guess, truth, rel_tol=1e-6)
    return bool(guess == truth)


def _plain(value: Any) -> Any:
    """Numbers as floats, names in small letters, containers as lists or sets of those."""
    if hasattr(value, "item") and not hasattr(value, "__len__"):  # a number of numpy's
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        return _plain_text(value)
    if isinstance(value, Set):
        return {_plain(item) for item in value}
    if isinstance(value, Mapping):
        return [_plain(item) for pair in sorted(value.items()) for item in pair]
    return [_plain(item) for item in value]


def _plain_text(text: str) -> bool | float | str:
    word = text.strip().casefold()
    if word in ("yes", "no", "true", "false"):
        return word in ("yes", "true")
    try:
        return float(word.replace(",", ""))
    except ValueError:
        return word


def shown(value: object) -> str:
    """A value as a person would say it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) or "none"
    if isinstance(value, Set):
        return ", ".join(sorted(map(shown, value))) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    return str(value)


class Picture:
    """A figure and the sentence that says what is to be seen in it, for those who read by ear or in a terminal."""

    def __init__(self, figure: Figure, words: str) -> None:
        self.figure = figure
        self.words = words

    def __repr__(self) -> str:
        return self.words

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        from nbengine.debug.plots import png

        return {"text/plain": self.words, "image/png": png(self.figure)}, {"image/png": {"alt": self.words}}
