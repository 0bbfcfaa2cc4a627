"""Decode by graphs, with a recorder that needs no GPU: replaying a call writes its result where the first one lay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nbengine.worker.decode_graphs import SIZES, DecodeGraphs
from tests.models.tiny import reference_greedy, reference_model
from tests.worker.rig import Rig, greedy, random_prompt

TinyModel = Callable[[str], Path]


class Replayed:
    """Stands in for a CUDA graph: the same call, on the same input tensors, into the same output."""

    def __init__(self, call: Callable[[], Tensor]) -> None:
        self.call, self.result, self.times = call, torch.full_like(call(), float("nan")), 0

    def replay(self) -> None:
        self.times += 1
        self.result.copy_(self.call())


@pytest.fixture
def rig(tiny_model: TinyModel) -> Rig:
    rig = Rig(tiny_model("qwen3"))
    limits = rig.runner.limits
    blocks = -(-(limits.max_model_len + 1) // limits.block_size)
    rig.recorded: list[Replayed] = []  # type: ignore[attr-defined]

    def record(call: Callable[[], Tensor]) -> tuple[Replayed, Tensor]:
        graph = Replayed(call)
        rig.recorded.append(graph)  # type: ignore[attr-defined]
        return graph, graph.result

    rig.runner.graphs = DecodeGraphs(rig.model, limits.max_num_seqs, blocks, record=record)
    return rig


def test_tokens_are_the_same(rig: Rig, tiny_model: TinyModel) -> None:
    """Requests of different lengths come and go, so batches shrink from six rows to one; prefills run as they are."""
    reference = reference_model(tiny_model("qwen3"))
    for i in range(6):
        rig.add(f"r{i}", random_prompt(i, 5 + 3 * i), greedy(4 + 2 * i))
    expected = {n: reference_greedy(reference, r.prompt, r.params.max_tokens or 0) for n, r in rig.requests.items()}
    assert rig.generate(chunk=9) == expected
    sizes = [graph.result.shape[0] for graph in rig.recorded]  # type: ignore[attr-defined]
    assert sorted(sizes) == [1, 2, 4, 8]
    assert all(graph.times > 0 for graph in rig.recorded)  # type: ignore[attr-defined]


def test_rows_behind_the_batch_write_nothing(rig: Rig) -> None:
    for i in range(3):
        rig.add(f"r{i}", random_prompt(i, 6), greedy(6))
    rig.run({"r0": 6, "r1": 6, "r2": 6})
    held = {block for request in rig.requests.values() for block in request.blocks}
    for _ in range(4):
        rig.run({"r0": 1, "r1": 1, "r2": 1})  # three rows in the graph of four
        held |= {block for request in rig.requests.values() for block in request.blocks}
    others = [block for block in range(rig.runner.caches[0].key.shape[0]) if block not in held]
    for cache in rig.runner.caches:
        assert not cache.key[others].any() and not cache.value[others].any()


def test_other_caches_are_recorded_anew(rig: Rig) -> None:
    rig.add("a", random_prompt(1, 6), greedy(8))
    rig.run({"a": 6})
    rig.run({"a": 1})
    rig.runner.caches = [type(cache)(cache.key.clone(), cache.value.clone()) for cache in rig.runner.caches]
    rig.run({"a": 1})
    assert len(rig.recorded) == 2  # type: ignore[attr-defined]


def test_sizes_end_with_what_the_engine_may_run(rig: Rig) -> None:
    assert DecodeGraphs(rig.model, 5, 8).sizes == [1, 2, 4, 5]
    assert DecodeGraphs(rig.model, 48, 8).sizes == [1, 2, 4, 8, 16, 32, 48]
    assert DecodeGraphs(rig.model, 1000, 8).sizes == list(SIZES)
