"""What `dbg.schedule()`, `execute()` and `update()` return: the engine's own messages, with a face for a notebook."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from nbengine.observe.tables import counted, html_table, milliseconds, numbers_text, text_table
from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import EngineCoreOutputs

T = TypeVar("T", bound=msgspec.Struct)


class _Shown:
    """A title and a table, as text and as HTML."""

    def _face(self) -> tuple[str, tuple[str, ...], list[list[object]]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        title, columns, rows = self._face()
        return f"{title}\n{text_table(columns, rows, '  ')}".rstrip()

    __str__ = __repr__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": html_table(*self._face())}


class Plan(_Shown, SchedulerOutput, kw_only=True):
    """A SchedulerOutput: which requests get how many tokens in this step, and in which blocks."""

    def _face(self) -> tuple[str, tuple[str, ...], list[list[object]]]:
        rows: list[list[object]] = []
        for kind, described in (("new", self.scheduled_new_reqs), ("resumed", self.scheduled_resumed_reqs)):
            for new in described:
                count = self.num_scheduled_tokens.get(new.request_id, 0)
                blocks = numbers_text(new.block_ids)
                rows.append([new.request_id, kind, count, new.num_computed_tokens, len(new.token_ids), blocks])
        cached = self.scheduled_cached_reqs
        for name, added, computed in zip(cached.request_ids, cached.new_block_ids, cached.num_computed_tokens):
            rows.append(
                [name, "running", self.num_scheduled_tokens.get(name, 0), computed, "", "+ " + numbers_text(added or [])]
            )
        rows = [[*row[:-1], row[-1] if row[-1] != "+ " else ""] for row in rows]
        order = list(self.num_scheduled_tokens)
        rows.sort(key=lambda row: order.index(str(row[0])) if row[0] in order else len(order))
        total = counted(self.total_num_scheduled_tokens, "token")
        title = f"plan of step {self.step}: {total} for {counted(len(order), 'request')}"
        if self.preempted_req_ids:
            title += f", preempted: {', '.join(self.preempted_req_ids)}"
        return title, ("request", "is", "tokens now", "computed before", "has tokens", "blocks"), rows


class Result(_Shown, ModelRunnerOutput, kw_only=True):
    """A ModelRunnerOutput: the sampled token of each request that reached its end."""

    def _face(self) -> tuple[str, tuple[str, ...], list[list[object]]]:
        sampled = sum(map(len, self.sampled_token_ids))
        parts = {"prepare": self.prepare_s, "forward": self.forward_s, "sample": self.sample_s}
        times = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in parts.items())
        rows: list[list[object]] = [
            [name, ", ".join(map(str, tokens)) or "none: its prompt is not computed to the end"]
            for name, tokens in zip(self.request_ids, self.sampled_token_ids)
        ]
        return f"{counted(sampled, 'token')} sampled ({times})", ("request", "token ids"), rows


class Outputs(_Shown, EngineCoreOutputs, kw_only=True):
    """EngineCoreOutputs: what was appended, and who is done."""

    def _face(self) -> tuple[str, tuple[str, ...], list[list[object]]]:
        rows: list[list[object]] = [
            [out.request_id, ", ".join(map(str, out.new_token_ids)), str(out.finish_reason or "")] for out in self.outputs
        ]
        return f"step {self.step} is done", ("request", "new token ids", "finished"), rows


def shown(message: msgspec.Struct, kind: type[T]) -> T:
    """The same message as its kind with a face; its lists are the same objects."""
    return kind(**{name: getattr(message, name) for name in message.__struct_fields__})
