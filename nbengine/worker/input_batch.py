"""The worker's own copy of the running requests, and the flat batch of a step made from it.

Every request has a row in a few arrays that are allocated once: its tokens, its block table, its numbers. The plan is
always right: what it says of a request (tokens computed, blocks added, the next token) is written over what is here.
Applying the same plan twice does no harm, so a step that was interrupted can be run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nbengine.errors import InvariantError
from nbengine.plan import CachedRequestData, NewRequestData, SchedulerOutput
from nbengine.sampling_params import SamplingParams

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(slots=True)
class RequestInfo:
    """What does not change while a request lives."""

    request_id: str
    sampling_params: SamplingParams
    num_prompt_tokens: int
    eos_token_id: int | None


@dataclass(slots=True)
class StepInputs:
    """One step, flat over its R requests and T tokens, as numpy arrays; views of buffers that the next step reuses."""

    request_ids: list[str]
    rows: Int64  # (R,) row of each request in the batch
    token_ids: Int32  # (T,)
    positions: Int32  # (T,)
    slot_mapping: Int64  # (T,)
    query_start_loc: Int32  # (R + 1,)
    seq_lens: Int32  # (R,)
    block_tables: Int32  # (R, max blocks of this step)
    samples: Bool  # (R,) whether the step reaches the end of what is known of the request


class InputBatch:
    """Rows of requests. Grows by doubling if a scheduler runs more of them, or longer ones, than it said."""

    def __init__(
        self, max_num_seqs: int, max_model_len: int, max_num_tokens: int, block_size: int, *, pinned: bool = False
    ) -> None:
        """pinned: the step's arrays lie in page-locked memory, which a GPU can copy from while the CPU goes on."""
        self.block_size = block_size
        max_blocks = -(-(max_model_len + 1) // block_size)
        # np.zeros leaves untouched pages to the system: a long max_model_len costs memory only where it is used
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)  # (rows, positions)
        self.block_table = np.zeros((max_num_seqs, max_blocks), np.int32)  # (rows, blocks), 0 = the null block
        self.num_tokens = np.zeros(max_num_seqs, np.int64)  # (rows,) tokens known to belong to the request
        self.num_computed = np.zeros(max_num_seqs, np.int64)  # (rows,) as the last plan said
        self.num_blocks = np.zeros(max_num_seqs, np.int64)
        self._blocks_before = np.zeros(max_num_seqs, np.int64)  # num_blocks before the step named in _grown_in
        self._grown_in = np.full(max_num_seqs, -1, np.int64)
        self.requests: list[RequestInfo | None] = [None] * max_num_seqs
        self.row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._buffers = _StepBuffers(max_num_seqs, max_num_tokens, max_blocks, pinned)

    # --------------------------------------------------------------------------------------------------------- the plan

    def apply(self, plan: SchedulerOutput) -> None:
        """Bring the rows up to what the plan says. Raises InvariantError for a request that nobody described."""
        for request_id in plan.finished_req_ids:
            self.remove(request_id)
        for request_id in plan.preempted_req_ids:
            self.remove(request_id)
        for new in plan.scheduled_new_reqs:
            self._add(new)
        for resumed in plan.scheduled_resumed_reqs:
            self._add(resumed)
        if plan.scheduled_cached_reqs.request_ids:
            self._continue(plan.scheduled_cached_reqs, plan.step)

    def remove(self, request_id: str) -> None:
        """Drop a request; an unknown id is fine."""
        row = self.row_of.pop(request_id, None)
        if row is not None:
            self.requests[row] = None
            self._free_rows.append(row)

    def clear(self) -> None:
        for request_id in list(self.row_of):
            self.remove(request_id)

    def _add(self, new: NewRequestData) -> None:
        self.remove(new.request_id)
        if not self._free_rows:
            self._grow_rows()
        row = self._free_rows.pop()
        self.row_of[new.request_id] = row
        count = len(new.token_ids)
        self._fit(count + 1, len(new.block_ids))
        self.token_ids[row, :count] = new.token_ids
        self.num_tokens[row] = count
        self.num_computed[row] = new.num_computed_tokens
        self.block_table[row, : len(new.block_ids)] = new.block_ids
        self.num_blocks[row] = len(new.block_ids)
        self._grown_in[row] = -1
        self.requests[row] = RequestInfo(new.request_id, new.sampling_params, new.num_prompt_tokens, new.eos_token_id)

    def _continue(self, cached: CachedRequestData, step: int) -> None:
        try:
            rows = [self.row_of[request_id] for request_id in cached.request_ids]
        except KeyError as error:
            raise InvariantError(
                f"The plan of step {step} continues request {error}, which the worker does not know: "
                "its first plan must carry it as new (or resumed)."
            ) from None
        self.num_computed[rows] = cached.num_computed_tokens
        if cached.next_token_ids:
            self._fit(max(cached.num_computed_tokens) + 2, 0)
            self.token_ids[rows, cached.num_computed_tokens] = cached.next_token_ids
        for row, block_ids in zip(rows, cached.new_block_ids):
            if block_ids:
                self._append_blocks(row, block_ids, step)

    def _append_blocks(self, row: int, block_ids: list[int], step: int) -> None:
        """Add blocks to a row's table; a second time in the same step, put them where they went the first time."""
        if self._grown_in[row] == step:
            start = int(self._blocks_before[row])
        else:
            start = int(self.num_blocks[row])
            self._blocks_before[row] = start
            self._grown_in[row] = step
        end = start + len(block_ids)
        self._fit(0, end)
        self.block_table[row, start:end] = block_ids
        self.num_blocks[row] = end

    # ------------------------------------------------------------------------------------------------------- the step

    def step_inputs(self, plan: SchedulerOutput) -> StepInputs:
        """The flat arrays of a plan that was applied. R requests, T tokens."""
        request_ids = list(plan.num_scheduled_tokens)
        counts = np.fromiter(plan.num_scheduled_tokens.values(), np.int64, len(request_ids))  # (R,)
        try:
            rows = np.fromiter((self.row_of[r] for r in request_ids), np.int64, len(request_ids))  # (R,)
        except KeyError as error:
            raise InvariantError(
                f"The plan of step {plan.step} schedules request {error}, which it never described."
            ) from None
        computed = self.num_computed[rows]
        lengths = computed + counts  # (R,)
        known = self.num_tokens[rows] = np.maximum(self.num_tokens[rows], lengths)
        longest, tokens = int(lengths.max()), int(counts.sum())
        self._fit(longest + 1, -(-longest // self.block_size))
        if not self._buffers.hold(len(rows), tokens, self.block_table.shape[1]):
            self._buffers = self._buffers.larger(len(rows), tokens, self.block_table.shape[1])
        query_start_loc = self._buffers.query_start_loc[: len(rows) + 1]
        np.cumsum(counts, out=query_start_loc[1:])
        token_ids, positions, slots = self._fill_tokens(rows, counts, computed, query_start_loc)
        seq_lens = self._buffers.seq_lens[: len(rows)]
        seq_lens[:] = lengths
        tables = self._fill_tables(rows, -(-longest // self.block_size))
        return StepInputs(
            request_ids, rows, token_ids, positions, slots, query_start_loc, seq_lens, tables, lengths >= known
        )

    def _fill_tokens(
        self, rows: Int64, counts: Int64, computed: Int64, query_start_loc: Int32
    ) -> tuple[Int32, Int32, Int64]:
        """Each token's id, position and slot: (T,) each. rows, counts, computed: (R,)."""
        tokens = int(query_start_loc[-1])
        positions, owner = self._buffers.positions[:tokens], rows
        if tokens == len(rows):  # every request one token: plain decode
            positions[:] = computed
        else:
            owner = np.repeat(rows, counts)  # (T,)
            positions[:] = np.arange(tokens) - np.repeat(query_start_loc[:-1] - computed, counts)
        token_ids, slots = self._buffers.token_ids[:tokens], self._buffers.slot_mapping[:tokens]
        token_ids[:] = self.token_ids[owner, positions]
        blocks, offsets = np.divmod(positions, self.block_size)
        np.multiply(self.block_table[owner, blocks], self.block_size, out=slots, dtype=np.int64)
        slots += offsets
        return token_ids, positions, slots

    def _fill_tables(self, rows: Int64, width: int) -> Int32:
        """The first `width` blocks of each request: (R, width)."""
        tables = self._buffers.block_tables[: len(rows) * width].reshape(len(rows), width)
        np.take(self.block_table[:, :width], rows, axis=0, out=tables)
        return tables

    def keep_sampled(self, rows: Int64, seq_lens: Int64, sampled: Int64) -> None:
        """Note each row's sampled token after its last one. It counts only once a plan computes it."""
        self.token_ids[rows, seq_lens] = sampled

    # ------------------------------------------------------------------------------------------------------------ room

    def _grow_rows(self) -> None:
        have = len(self.requests)
        for name in ("token_ids", "block_table", "num_tokens", "num_computed", "num_blocks", "_blocks_before", "_grown_in"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.requests += [None] * have
        self._free_rows = list(range(2 * have - 1, have - 1, -1))

    def _fit(self, positions: int, blocks: int) -> None:
        if positions > self.token_ids.shape[1]:
            self.token_ids = _wider(self.token_ids, positions)
        if blocks > self.block_table.shape[1]:
            self.block_table = _wider(self.block_table, blocks)


class _StepBuffers:
    """The flat arrays of a step, allocated once and filled in place."""

    def __init__(self, requests: int, tokens: int, max_blocks: int, pinned: bool) -> None:
        def zeros(count: int, dtype: torch.dtype = torch.int32) -> NDArray[Any]:
            return torch.zeros(count, dtype=dtype, pin_memory=pinned).numpy()

        self.pinned = pinned
        self.query_start_loc: Int32 = zeros(requests + 1)
        self.seq_lens: Int32 = zeros(requests)
        self.block_tables: Int32 = zeros(requests * max_blocks)
        self.token_ids: Int32 = zeros(tokens)
        self.positions: Int32 = zeros(tokens)
        self.slot_mapping: Int64 = zeros(tokens, torch.int64)

    def hold(self, requests: int, tokens: int, max_blocks: int) -> bool:
        enough = requests <= len(self.seq_lens) and tokens <= len(self.token_ids)
        return enough and requests * max_blocks <= len(self.block_tables)

    def larger(self, requests: int, tokens: int, max_blocks: int) -> _StepBuffers:
        rows, columns = max(requests, len(self.seq_lens)), max(tokens, len(self.token_ids))
        return _StepBuffers(rows, columns, max_blocks, self.pinned)


def _wider(array: Int32, columns: int) -> Int32:
    grown = np.zeros((array.shape[0], max(columns, 2 * array.shape[1])), array.dtype)
    grown[:, : array.shape[1]] = array
    return grown
