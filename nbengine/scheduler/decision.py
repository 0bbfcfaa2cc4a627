"""Why a request did or did not get tokens in a step: one Decision for every request that the scheduler looked at."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec


class Verdict(StrEnum):
    """What became of a request in the running or the waiting pass. Each names the numbers that its Decision carries."""

    # got tokens
    DECODE = "decode"  # tokens
    PREFILL = "prefill"  # tokens, remaining (prompt tokens still to compute after this chunk), chunked (1 = more chunks)
    ADMITTED = "admitted"  # tokens, hit (tokens found in the prefix cache), remaining, chunked
    RESUMED = "resumed"  # tokens, hit, remaining, chunked; after a preemption
    # got none
    NO_NEED = "no_need"  # nothing to compute: at max_model_len, or its last token is in flight
    BUDGET = "budget"  # budget (of the step), used: the token budget was spent before it
    CHUNK_TOO_BIG = "chunk_too_big"  # needs, budget (left): chunked prefill is off and the prompt does not fit what is left
    NO_BLOCKS = "no_blocks"  # needs, free, watermark: a waiting request does not fit
    RESERVE = "reserve"  # needs, free, watermark: its whole sequence does not fit (scheduler_reserve_full_isl)
    MAX_NUM_SEQS = "max_num_seqs"  # running, limit
    MAX_LORAS = "max_loras"  # active, limit
    PREEMPTED = "preempted"  # needs, free (at that moment), computed (lost), freed; cause = who needed the blocks
    SELF_PREEMPTED = "self_preempted"  # the same, when it was its own victim
    PASS_ENDED = "pass_ended"  # a running request behind one that preempted itself: the running pass ended there
    ADMISSION_OFF = "admission_off"  # waiting, and a preemption in this step suppressed admission; cause = the victim
    BEHIND = "behind"  # waiting behind a head that could not be admitted; cause = the head
    PAUSED = "paused"  # the scheduler is paused
    THROTTLED = "throttled"  # data-parallel prefill throttling
    GRAMMAR = "grammar"  # waits for its grammar


class Decision(msgspec.Struct, array_like=True):
    """One request's verdict with the numbers behind it.

    cause: the request that it is about beside this one, if any. file, line: the source line that decided, so that a person
    can read the rule itself; rule: its name, as "MyScheduler.choose_victim". file and rule are empty for
    nbengine/scheduler/scheduler.py.
    """

    request_id: str
    verdict: Verdict
    numbers: dict[str, int]
    cause: str | None = None
    line: int = 0
    file: str = ""
    rule: str = ""

    def __str__(self) -> str:
        facts = [f"{name} {value}" for name, value in self.numbers.items()]
        if self.cause is not None:
            facts.append(f"because of {self.cause}")
        return f"{self.request_id}: {self.verdict}" + (f" ({', '.join(facts)})" if facts else "")

    __repr__ = __str__


class DecisionLog:
    """The decisions of one step, appended to an observer's list; with None for a list, nothing is kept."""

    __slots__ = ("_entries", "_start")

    def __init__(self, entries: list[Decision] | None) -> None:
        self._entries = entries
        self._start = len(entries or ())  # what stands before is of earlier steps

    def note(
        self,
        request_id: str,
        verdict: Verdict,
        cause: str | None = None,
        rule: Callable[..., Any] | None = None,
        numbers: dict[str, int] | None = None,
    ) -> None:
        """Append one decision. Its source line is the caller's, or that of `rule`, the method that chose."""
        if self._entries is None:
            return
        self._entries.append(Decision(request_id, verdict, numbers or {}, cause, *_place(sys._getframe(1), rule)))

    def note_rest(
        self,
        request_ids: Iterable[str],
        verdict: Verdict,
        cause: str | None = None,
        numbers: dict[str, int] | None = None,
    ) -> None:
        """The same decision for each of these that has none yet in this step."""
        if self._entries is None:
            return
        decided = {entry.request_id for entry in self._entries[self._start :]}
        place = _place(sys._getframe(1))
        for request_id in request_ids:
            if request_id not in decided:
                self._entries.append(Decision(request_id, verdict, numbers or {}, cause, *place))

    def withdraw(self, request_id: str) -> None:
        """Forget what was noted of a request in this step: something else became of it."""
        if self._entries is None:
            return
        self._entries[self._start :] = [e for e in self._entries[self._start :] if e.request_id != request_id]


def _place(frame: FrameType, rule: Callable[..., Any] | None = None) -> tuple[int, str, str]:
    """Line, file and name of the rule, or of the frame that noted the decision; for scheduler.py the line alone."""
    code, line = frame.f_code, frame.f_lineno
    if rule is not None:
        code = getattr(rule, "__func__", rule).__code__
        line = code.co_firstlineno
    if code.co_filename == _STOCK:
        return line, "", ""
    return line, code.co_filename, _short(code.co_qualname)


def rule_name(rule: Callable[..., Any]) -> str:
    """A rule as an error message names it: "MyScheduler.choose_victim"."""
    return _short(getattr(rule, "__qualname__", repr(rule)))


def _short(qualname: str) -> str:
    """Without the function that a class was defined in."""
    return qualname.rpartition("<locals>.")[2]


_STOCK = str(Path(__file__).with_name("scheduler.py"))
