"""CUDA graphs for plain decode: the launches of a forward pass, recorded once for a few batch sizes, replayed in one call.

A batch in which each of R requests has one token runs in the smallest recorded size that holds it. The rows beyond R are
requests of one token whose slot is -1: they write nothing, and nobody reads their logits. Every other batch (a prefill, a
mixed or a larger one) runs as it is, launch by launch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from nbengine.models.interface import FlatBatch, LayerCache, PagedModel

SIZES = (1, 2, 4, 8, *range(16, 257, 16))
"""Batch sizes worth recording; a step of decode costs the same up to the next of them."""


class Graph(Protocol):
    def replay(self) -> None: ...


Record = Callable[[Callable[[], Tensor]], tuple[Graph, Tensor]]
"""Records a call; replaying the graph writes the call's result into the tensor that is returned beside it."""


def record_cuda(call: Callable[[], Tensor]) -> tuple[Graph, Tensor]:
    """As torch's documentation of `torch.cuda.graph` says: warm up on a stream of its own, then capture."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


class DecodeGraphs:
    """Records a size when it is first met. max_blocks: columns of a block table."""

    def __init__(self, model: PagedModel, max_num_seqs: int, max_blocks: int, *, record: Record = record_cuda) -> None:
        self._model, self._record, self._max_blocks = model, record, max_blocks
        self.sizes = [size for size in SIZES if size < max_num_seqs]
        self.sizes += [size for size in (min(max_num_seqs, SIZES[-1]),) if size not in self.sizes]
        self._recorded: dict[int, tuple[Graph, Tensor]] = {}
        self._caches: list[LayerCache] | None = None
        largest, device = self.sizes[-1], model.device

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        # The graphs hold the addresses of these: every size reads the front of the same tensors.
        self._inputs = FlatBatch(
            token_ids=zeros(largest),
            positions=zeros(largest),
            slot_mapping=zeros(largest, dtype=torch.int64),
            query_start_loc=torch.arange(largest + 1, dtype=torch.int32, device=device),
            seq_lens=zeros(largest),
            block_tables=zeros(largest, max_blocks),
            logits_rows=torch.arange(largest, device=device),
        )

    def forward(self, batch: FlatBatch, caches: list[LayerCache]) -> Tensor | None:
        """(R, V) float32 logits, overwritten by the next call; None if the batch is not one for a graph."""
        requests, width = batch.block_tables.shape
        plain = len(batch.token_ids) == requests == len(batch.logits_rows)
        if not plain or not 0 < requests <= self.sizes[-1] or width > self._max_blocks:
            return None
        if caches is not self._caches:
            self._recorded, self._caches = {}, caches
        size = self.sizes[bisect_left(self.sizes, requests)]
        self._fill(batch, requests, width, size)
        if size not in self._recorded:
            inputs = self._front(size)
            self._recorded[size] = self._record(lambda: self._model.forward(inputs, caches))
        graph, logits = self._recorded[size]
        graph.replay()
        return logits[:requests]

    def _fill(self, batch: FlatBatch, requests: int, width: int, size: int) -> None:
        """Put a batch at the front of the inputs, and rows that do no harm behind it, up to `size`."""
        mine = self._inputs
        harmless: dict[str, Any] = {"token_ids": 0, "positions": 0, "slot_mapping": -1, "seq_lens": 1}
        for name, value in harmless.items():
            column: Tensor = getattr(mine, name)
            column[:requests].copy_(getattr(batch, name), non_blocking=True)
            column[requests:size] = value
        mine.block_tables[:requests, :width].copy_(batch.block_tables, non_blocking=True)
        mine.block_tables[requests:size, :1] = 0  # the null block

    def _front(self, size: int) -> FlatBatch:
        mine = self._inputs
        return FlatBatch(
            mine.token_ids[:size],
            mine.positions[:size],
            mine.slot_mapping[:size],
            mine.query_start_loc[: size + 1],
            mine.seq_lens[:size],
            mine.block_tables[:size],
            mine.logits_rows[:size],
        )
