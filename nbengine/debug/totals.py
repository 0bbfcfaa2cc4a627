"""A run in numbers, by the engine's working time."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

import msgspec

from nbengine.debug.trace import Trace
from nbengine.observe.records import Aborted, Added, AnyRecord, Changed, Executed, Keyframe, Scheduled, StepRecord, Updated
from nbengine.scheduler.decision import Verdict


class Totals(msgspec.Struct, kw_only=True):
    """A run in numbers; None where nothing was measured.

    Seconds are of the engine's working time, the sum of its phases: while a person looks at it, or goes back, it stands
    still. So a rewound run, a fork and one that was never stopped can be compared, but time without work is not in them.
    """

    steps: int
    requests: int
    finished: int
    preemptions: int
    tokens_recomputed: int  # computed, lost in a preemption, and not found in the prefix cache on the way back
    output_tokens: int
    prefix_hit_rate: float | None
    mean_ttft_s: float | None
    mean_itl_s: float | None
    seconds: float
    tokens_per_s: float | None

    def __repr__(self) -> str:
        return ", ".join(f"{name} {number_text(getattr(self, name))}" for name in self.__struct_fields__)


def totals(trace: Trace, first_step: int = 0) -> Totals:
    """The totals of a recorded run, from `first_step` on: whoever came earlier counts as come then."""
    steps = [step for step in trace.steps if step.step >= first_step]
    made = sum(len(tokens) for step in steps if step.updated for tokens in step.updated.tokens)
    phases = [phase for step in steps for phase in (step.scheduled, step.executed, step.updated) if phase]
    busy = sum(map(_seconds, phases))
    ttft, itl = _latencies(trace.records, first_step)
    prefix = [step.updated.prefix for step in steps if step.updated and step.updated.prefix]
    queries, hits = sum(p[1] for p in prefix), sum(p[2] for p in prefix)
    ended = sum(len(step.updated.finished) for step in steps if step.updated)
    by_hand = [change for step in steps for change in step.inputs]
    return Totals(
        steps=sum(step.updated is not None for step in steps),
        requests=len({name for step in steps if step.scheduled for name in step.scheduled.request_ids}),
        finished=ended + sum(isinstance(change, Aborted) for change in by_hand),
        preemptions=sum(len(step.scheduled.preempted) for step in steps if step.scheduled)
        + sum(len(change.values.get("preempted", ())) for change in by_hand if isinstance(change, Changed)),
        tokens_recomputed=_recomputed(steps),
        output_tokens=made,
        prefix_hit_rate=hits / queries if queries else None,
        mean_ttft_s=fmean(ttft) if ttft else None,
        mean_itl_s=fmean(itl) if itl else None,
        seconds=busy,
        tokens_per_s=made / busy if busy else None,
    )


def _seconds(phase: Scheduled | Executed | Updated) -> float:
    match phase:
        case Scheduled():
            return phase.schedule_s
        case Executed():
            return phase.execute_s
        case Updated():
            return phase.update_s


def _latencies(records: Iterable[AnyRecord], first_step: int) -> tuple[list[float], list[float]]:
    """TTFT of each request that got its first token from `first_step` on, and the mean ITL of each that got later ones."""
    clock = 0.0  # working time since first_step
    added: dict[str, float] = {}
    last: dict[str, float] = {}  # when it got its last token
    ttft: list[float] = []
    gaps: dict[str, list[float]] = {}
    for record in records:
        if isinstance(record, Keyframe):
            for state in record.requests:
                added.setdefault(state.request_id, clock)
                if len(state.token_ids) > state.num_prompt_tokens:
                    last.setdefault(state.request_id, clock)
        elif isinstance(record, Added):
            added[record.request_id] = clock
            last.pop(record.request_id, None)
        elif isinstance(record, Scheduled | Executed | Updated):
            counts = record.step >= first_step
            clock += _seconds(record) if counts else 0.0
            for request_id, tokens in zip(record.request_ids, record.tokens) if isinstance(record, Updated) else ():
                if tokens and counts and request_id in last:
                    gaps.setdefault(request_id, []).append((clock - last[request_id]) / len(tokens))
                elif tokens and counts and request_id in added:  # a file of a newer nbengine has gaps
                    ttft.append(clock - added[request_id])
                if tokens:
                    last[request_id] = clock
    return ttft, [fmean(times) for times in gaps.values()]


def _recomputed(steps: Iterable[StepRecord]) -> int:
    """Tokens lost by preemptions, less what each victim found in the prefix cache when it came back."""
    lost: dict[str, int] = {}
    total = 0
    for step in steps:
        for decision in step.scheduled.decisions if step.scheduled else ():
            if decision.verdict in (Verdict.PREEMPTED, Verdict.SELF_PREEMPTED):
                lost[decision.request_id] = decision.numbers.get("computed", 0)
            elif decision.verdict is Verdict.RESUMED:
                total += max(0, lost.pop(decision.request_id, 0) - decision.numbers.get("hit", 0))
    return total


def number_text(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
