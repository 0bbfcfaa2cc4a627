"""What happened to one request, or to one KV block, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from nbengine.kv_cache.ops import WORDS, BlockOp, Op
from nbengine.observe.records import Aborted, Added, AnyRecord, Changed, Keyframe, Scheduled, Updated
from nbengine.observe.tables import counted, html_table, text_table
from nbengine.scheduler.decision import Decision, Verdict


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a history. event: queued, admitted, scheduled, preempted, resumed, finished, … or, of a block, what was
    done to it. tokens: given in that step. cached: found in the prefix cache. blocks: held afterwards."""

    step: int
    at: float
    event: str
    request_id: str | None = None
    tokens: int = 0
    cached: int = 0
    blocks: int = 0
    detail: str = ""

    def __repr__(self) -> str:
        facts = [counted(self.tokens, "token")] if self.tokens else []
        facts += [f"{self.cached} cached"] if self.cached else []
        facts += [counted(self.blocks, "block")] if self.blocks else []
        what = f"step {self.step}, {self.at:.3f} s: {self.event} {self.request_id or ''}".rstrip()
        return what + (f" ({', '.join(facts)})" if facts else "") + (f": {self.detail}" if self.detail else "")


class History(Sequence[Moment]):
    def __init__(self, title: str, moments: Iterable[Moment]) -> None:
        self.title = title
        self._moments = list(moments)

    def __len__(self) -> int:
        return len(self._moments)

    def __getitem__(self, index: Any) -> Any:
        return self._moments[index]

    def _rows(self) -> list[list[object]]:
        return [
            [m.step, f"{m.at:.3f} s", m.event, m.request_id or "", m.tokens or "", m.cached or "", m.blocks or "", m.detail]
            for m in self._moments
        ]

    def __repr__(self) -> str:
        return f"{self.title}\n{text_table(_COLUMNS, self._rows(), '  ')}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": html_table(self.title, _COLUMNS, self._rows())}


_COLUMNS = ("step", "at", "event", "request", "tokens", "cached", "blocks", "")


def request_history(records: Iterable[AnyRecord], request_id: str) -> History:
    """From the add to the end, as far as it is recorded."""
    return History(f"request {request_id}", _RequestHistory(request_id).read(records))


def block_history(records: Iterable[AnyRecord], block_id: int) -> History:
    moments = []
    for record in records:
        for op in getattr(record, "block_ops", ()):
            if op.block_id == block_id:
                detail = f"hash {op.hash}" if op.hash else ""
                moment = Moment(
                    step=getattr(record, "step", 0), at=getattr(record, "at", 0.0), event=WORDS[op.op],
                    request_id=op.request_id, detail=detail,
                )  # fmt: skip
                moments.append(moment)
    return History(f"block {block_id}", moments)


class _RequestHistory:
    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.blocks = 0

    def read(self, records: Iterable[AnyRecord]) -> Iterator[Moment]:
        known = False
        for record in records:
            if isinstance(record, Keyframe):
                state = next((r for r in record.requests if r.request_id == self.request_id), None)
                self.blocks = len(state.block_ids) if state else 0
                if state is not None and not known:
                    yield self._moment(record, "known since", detail=state.status)
                known = known or state is not None
                continue
            self._count(getattr(record, "block_ops", ()))
            for moment in self._moments(record):
                known = True
                yield moment

    def _count(self, ops: Iterable[BlockOp]) -> None:
        for op in ops:
            if op.request_id == self.request_id:
                self.blocks += (op.op in (Op.ALLOCATE, Op.HIT)) - (op.op in (Op.DEREF, Op.FREE_FRONT, Op.FREE_BACK))

    def _moments(self, record: AnyRecord) -> Iterator[Moment]:
        mine = getattr(record, "request_id", None) == self.request_id
        if isinstance(record, Added) and mine:
            yield self._moment(record, "queued", detail=f"{len(record.prompt_token_ids)} prompt tokens")
        elif isinstance(record, Aborted) and mine:
            yield self._moment(record, "finished", detail=record.reason)
        elif isinstance(record, Changed) and (mine or self.request_id in record.values.get("preempted", ())):
            yield self._moment(record, "preempted" if "preempted" in record.values else record.what, detail="by hand")
        elif isinstance(record, Scheduled):
            yield from (self._decided(record, d) for d in record.decisions if d.request_id == self.request_id)
        elif isinstance(record, Updated):
            yield from (
                self._moment(record, "finished", detail=end.reason)
                for end in record.finished
                if end.request_id == self.request_id
            )

    def _decided(self, record: Scheduled, decision: Decision) -> Moment:
        n = decision.numbers
        if decision.verdict in (Verdict.DECODE, Verdict.PREFILL):
            return self._moment(record, "scheduled", tokens=n.get("tokens", 0), detail=str(decision.verdict))
        if decision.verdict in (Verdict.ADMITTED, Verdict.RESUMED):
            return self._moment(record, str(decision.verdict), tokens=n.get("tokens", 0), cached=n.get("hit", 0))
        if decision.verdict in (Verdict.PREEMPTED, Verdict.SELF_PREEMPTED):
            detail = f"for {decision.cause or 'itself'}, {n.get('computed', 0)} computed tokens lost"
            return self._moment(record, "preempted", detail=detail)
        return self._moment(
            record, "passed over", detail=str(decision.verdict) + (f", {decision.cause}" if decision.cause else "")
        )

    def _moment(self, record: Any, event: str, **facts: Any) -> Moment:
        return Moment(step=record.step, at=record.at, event=event, request_id=self.request_id, blocks=self.blocks, **facts)
