"""The plan of a step while it is being made."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbengine.plan import CachedRequestData, NewRequestData
from nbengine.scheduler.decision import DecisionLog


@dataclass(slots=True)
class Batch:
    """Who gets how many tokens. The three lists of columns are of the running requests in it, in batch order."""

    budget: int  # tokens left
    log: DecisionLog
    tokens: dict[str, int] = field(default_factory=dict)  # request -> tokens in this step, in batch order
    computed: list[int] = field(default_factory=list)  # num_computed_tokens before this step
    next_tokens: list[int] = field(default_factory=list)  # the first token that this step computes
    added_blocks: dict[str, list[int]] = field(default_factory=dict)  # running request -> blocks added to its table
    preempted: list[str] = field(default_factory=list)
    new: list[NewRequestData] = field(default_factory=list)
    resumed: list[NewRequestData] = field(default_factory=list)

    def take_back(self, request_id: str) -> int:
        """Remove a running request that may have its tokens already; how many it had."""
        if request_id not in self.tokens:
            return 0
        column = list(self.tokens).index(request_id)
        del self.computed[column], self.next_tokens[column]
        self.added_blocks.pop(request_id, None)
        return self.tokens.pop(request_id)

    def continuing(self) -> CachedRequestData:
        """The running requests that got tokens, as columns; to be called before any other is admitted."""
        ids = list(self.tokens)
        added: list[list[int] | None] = [None] * len(ids)
        if self.added_blocks:
            added = [self.added_blocks.get(request_id) for request_id in ids]
        return CachedRequestData(ids, added, self.computed, self.next_tokens)
