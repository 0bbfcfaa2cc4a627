"""The objects that an EngineView is made of: one request, one block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from nbengine.observe.records import RequestState
from nbengine.observe.tables import html_table, milliseconds, numbers_text, text_table


def is_of(core_id: str, request_id: str) -> bool:
    """Whether the core's request is that of the user's id, or one of its n answers ("0_a" of "a")."""
    index, _, asked = core_id.partition("_")
    return core_id == request_id or (asked == request_id and index.isdigit())


class RequestView(RequestState, kw_only=True):
    """One request as the records tell it. Live: it changes as the view does."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return self.status == "finished"

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds of the engine's work from the add to the first token (TTFT): time in which it stood does not count."""
        return None if self.first_token_at is None else self.first_token_at - self.added_at

    @property
    def inter_token_latency(self) -> float | None:
        """Mean seconds of work between tokens after the first (ITL)."""
        made = self.num_tokens - self.num_prompt_tokens
        if self.first_token_at is None or self.last_token_at is None or made < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (made - 1)

    def row(self) -> list[object]:
        """The cells of this request in a table with the heads REQUEST_COLUMNS."""
        status = self.status if self.finish_reason is None else f"finished: {self.finish_reason}"
        return [
            self.request_id,
            status,
            f"{self.num_computed_tokens}/{self.num_tokens}",
            f"{self.num_prompt_tokens} + {self.num_tokens - self.num_prompt_tokens}",
            self.scheduled or "",
            self.num_cached_tokens or "",
            self.num_preemptions or "",
            numbers_text(self.block_ids),
        ]

    def _facts(self) -> list[tuple[str, object]]:
        facts: list[tuple[str, object]] = list(zip(REQUEST_COLUMNS[1:], self.row()[1:]))
        ttft, itl = self.time_to_first_token, self.inter_token_latency
        facts.append(("TTFT", "" if ttft is None else milliseconds(ttft)))
        facts.append(("ITL", "" if itl is None else milliseconds(itl)))
        return [("prompt", repr(self.prompt)) if self.prompt is not None else ("priority", self.priority), *facts]

    def __str__(self) -> str:
        return f"request {self.request_id}\n" + text_table(("", ""), [fact for fact in self._facts() if fact[1] != ""], "  ")

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        rows = [fact for fact in self._facts() if fact[1] != ""]
        return {"text/plain": str(self), "text/html": html_table(f"request {self.request_id}", ("", ""), rows)}


REQUEST_COLUMNS = ("request", "status", "computed", "prompt + output", "now", "cached", "preempted", "blocks")


class HasBlocks(Protocol):
    owners: list[list[str]]
    hashes: list[str | None]

    def block_token_ids(self, block_id: int) -> list[int]: ...


class BlockView:
    """One KV block. state: "null" (block 0), "free", "cached" (free, but its content can still be hit), "used", "shared"."""

    __slots__ = ("_view", "block_id")

    def __init__(self, view: HasBlocks, block_id: int) -> None:
        self._view = view
        self.block_id = block_id

    @property
    def owners(self) -> list[str]:
        return list(self._view.owners[self.block_id])

    @property
    def ref_count(self) -> int:
        return len(self._view.owners[self.block_id])

    @property
    def hash(self) -> str | None:
        return self._view.hashes[self.block_id]

    @property
    def state(self) -> str:
        if self.block_id == 0:
            return "null"
        if self.ref_count:
            return "shared" if self.ref_count > 1 else "used"
        return "cached" if self.hash is not None else "free"

    @property
    def token_ids(self) -> list[int]:
        """What the block holds: of the last request that it was given to, as far as that is still known."""
        return self._view.block_token_ids(self.block_id)

    def __repr__(self) -> str:
        owners = ", ".join(self.owners) or "nobody"
        cached = f", hash {self.hash}" if self.hash else ""
        return f"block {self.block_id}: {self.state}, held by {owners}{cached}"


class Blocks(Sequence[BlockView]):
    """All KV blocks of a view, by number."""

    def __init__(self, view: HasBlocks) -> None:
        self._view = view

    def __len__(self) -> int:
        return len(self._view.owners)

    def __repr__(self) -> str:
        states = Counter(block.state for block in self)
        return f"{len(self)} KV blocks: " + ", ".join(f"{number} {state}" for state, number in states.items())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [BlockView(self._view, i) for i in range(len(self))[index]]
        return BlockView(self._view, range(len(self))[index])


S = TypeVar("S", bound=RequestState)


def copy_state(state: RequestState, kind: type[S]) -> S:
    """A RequestState as another kind of RequestState, with lists of its own."""
    fields = {name: getattr(state, name) for name in RequestState.__struct_fields__}
    fields["token_ids"], fields["block_ids"] = list(state.token_ids), list(state.block_ids)
    return kind(**fields)
