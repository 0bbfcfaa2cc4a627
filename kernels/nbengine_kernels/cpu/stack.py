"""All layers of a decoder in one call.

A pass is a row of phases (norm, product, rotary, attention, …), and a phase a number of units that threads draw from a
counter. A thread that finds nothing left to draw waits until the phase's units are *done*: for work, not for the other
threads. So one that the system has taken off its core holds nobody up, except in the middle of a unit; and the threads
are woken once a pass, not at each of its three hundred phases, which for one token would cost more than the arithmetic.

Many rows go through a layer in blocks instead: between two attentions a thread takes a block through everything alone, from
its own cache to its own cache, while the weights pass by.

The arithmetic is that of the single kernels, called from here: same functions, same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.attention import attend_pieces, scratch_floats
from nbengine_kernels.cpu.layer_rows import activate_some, block_of, count_blocks, norm_some, sum_some, turn_some
from nbengine_kernels.cpu.linear import (
    BLOCK_ROWS,
    MATRIX,
    PackedLinear,
    count_units,
    multiply_rows,
    multiply_units,
    record,
)
from nbengine_kernels.cpu.pieces import cut_pieces, heads_of_unit
from nbengine_kernels.cpu.runtime import BFLOAT16, FLOAT32, rows_of, tag_of, threads
from nbengine_kernels.decoder import DecoderLayer, DecoderSizes, PagedBatch

_F32 = FLOAT32
_ZERO = np.float32(0.0)
ROWS = 8  # rows of an elementwise unit
PHASE_NAMES = (
    "norm", "qkv", "rotary, KV write", "attention", "waiting, sums", "output", "norm 2", "gate and up", "activation", "down",
    "head",
)  # fmt: skip
NORM, QKV_PRODUCT, TURN, ATTENTION, SUMS, OUTPUT_PRODUCT, POST_NORM, GATE_UP_PRODUCT, ACTIVATION, DOWN_PRODUCT, HEAD = range(
    11
)
PHASES = HEAD  # of a layer
MANY_ROWS = 384
"""From so many rows on, blocks of them go through a layer."""
TOKEN_LAYERS_OF_A_CALL = 8192
"""Layers times tokens that one call computes, a layer at least: some 60 ms, for which an interrupt waits."""


# Addresses and numbers, all int64. Strides of the caches are in elements.
LAYER = record(
    "input_norm", "post_norm", "query_norm", "key_norm", "window", "rotary",
    "key_cache", "key_block", "value_cache", "value_block",
)  # fmt: skip
QKV, OUTPUT, GATE_UP, DOWN, MATRICES = range(5)
MODEL = np.dtype(
    [(n, np.int64) for n in ("hidden", "heads", "kv_heads", "dim", "cos_sin", "half", "final_norm", "block_size")]
    + [("eps", np.float64), ("scale", np.float32)]
)
PASS = record(
    "tokens", "requests", "positions", "slots", "starts", "lengths", "tables", "table_stride", "rows", "wanted", "logits",
    "residual", "own_bytes", "clock", "scratch", "own", "inputs", "sums", "inner", "delta", "mlp_inputs", "mlp_sums", "mlp",
)  # fmt: skip


@njit(cache=True, error_model="numpy")
def _norm(
    x: Any, residual: Any, rows: Any, weight: Any, model: Any, y: Any, sums: Any, matrix: Any, counter: Any,
    tag: Any, row_tag: Any,
) -> None:  # fmt: skip
    units = (rows + ROWS - 1) // ROWS
    unit = ir.take_ticket(counter)
    while unit < units:
        first, last = unit * ROWS, min(rows, unit * ROWS + ROWS)
        norm_some(x, residual, weight, model, y, sums, matrix, first, last, tag, row_tag)
        ir.finish_ticket(counter)
        unit = ir.take_ticket(counter)
    ir.wait_finished(counter, units)


@njit(cache=True, error_model="numpy")
def _multiply(
    matrix: Any, a: Any, sums: Any, rows: Any, y: Any, counter: Any, row_tag: Any, weight_tag: Any, tag: Any
) -> None:
    multiply_units(matrix, a, matrix.inputs, sums, rows, y, matrix.outputs, counter, row_tag, weight_tag, tag)
    ir.wait_finished(counter, count_units(matrix, rows))


@njit(cache=True, error_model="numpy")
def _turn(layer: Any, model: Any, job: Any, counter: Any, tag: Any) -> None:
    units = (job.tokens + ROWS - 1) // ROWS
    unit = ir.take_ticket(counter)
    while unit < units:
        turn_some(layer, model, job, unit * ROWS, min(job.tokens, unit * ROWS + ROWS), tag)
        ir.finish_ticket(counter)
        unit = ir.take_ticket(counter)
    ir.wait_finished(counter, units)


@njit(cache=True, error_model="numpy")
def _attend(layer: Any, model: Any, job: Any, pieces: Any, memory: Any, counter: Any, tag: Any, row_tag: Any) -> None:
    """job.inputs (T, H D) = attention, whose queries lie in job.inner."""
    heads, kv_heads, dim = model.heads, model.kv_heads, model.dim
    attend_pieces(
        job.inner, (heads + 2 * kv_heads) * dim, layer.key_cache, layer.key_block, layer.value_cache, layer.value_block,
        job.tables, job.table_stride, job.starts, job.lengths, job.inputs, heads * dim, pieces, counter,
        heads, kv_heads, model.block_size, dim, model.scale, layer.window, _ZERO, tag, row_tag, memory,
    )  # fmt: skip
    ir.wait_finished(counter, pieces.shape[0] * (kv_heads // heads_of_unit(pieces, kv_heads)))


@njit(cache=True, error_model="numpy")
def _sum_groups(x: Any, sums: Any, rows: Any, matrix: Any, counter: Any, row_tag: Any) -> None:
    """Where a product needs group sums of rows that came into being in pieces."""
    units = (rows + ROWS - 1) // ROWS if matrix.groups > 0 else np.int64(0)
    unit = ir.take_ticket(counter)
    while unit < units:
        sum_some(x, sums, matrix, unit * ROWS, min(rows, unit * ROWS + ROWS), row_tag)
        ir.finish_ticket(counter)
        unit = ir.take_ticket(counter)
    ir.wait_finished(counter, units)


@njit(cache=True, error_model="numpy")
def _activate(job: Any, rows: Any, down: Any, counter: Any, tag: Any, row_tag: Any) -> None:
    units = (rows + ROWS - 1) // ROWS
    unit = ir.take_ticket(counter)
    while unit < units:
        first, last = unit * ROWS, min(rows, unit * ROWS + ROWS)
        activate_some(job.mlp, job.mlp_inputs, job.mlp_sums, down, first, last, tag, row_tag)
        ir.finish_ticket(counter)
        unit = ir.take_ticket(counter)
    ir.wait_finished(counter, units)


@njit(cache=True, error_model="numpy")
def _choose(model: Any, job: Any, counter: Any, tag: Any, row_tag: Any) -> None:
    """Bring the wanted rows of what was attended to job.mlp_inputs, and of the residual to job.inner."""
    width, attended = model.hidden * ir.size(tag), model.heads * model.dim * ir.size(row_tag)
    unit = ir.take_ticket(counter)
    while unit < job.wanted:
        r = ir.load_i64(job.rows, unit)
        ir.copy(job.mlp_inputs + unit * attended, job.inputs + r * attended, attended)
        ir.copy(job.inner + unit * width, job.residual + r * width, width)
        ir.finish_ticket(counter)
        unit = ir.take_ticket(counter)
    ir.wait_finished(counter, job.wanted)


@njit(cache=True, error_model="numpy")
def _stamp(clock: Any, phase: Any, since: Any) -> Any:
    """Add the ticks since `since` to a phase's; now."""
    now = ir.ticks()
    ir.store_i64(clock, phase, ir.load_i64(clock, phase) + now - since)
    return now


@njit(cache=True, error_model="numpy")
def _before_attention(
    layer: Any, qkv: Any, x: Any, model: Any, job: Any, first: Any, last: Any, memory: Any, clock: Any, at: Any,
    tag: Any, row_tag: Any, weight_tag: Any,
) -> Any:  # fmt: skip
    """A block of rows, alone: norm, query, key and value, their turn and their slots. x: what is added to the residual;
    memory: job.own_bytes of it, group sums at its end."""
    inputs = memory - first * model.hidden * ir.size(row_tag)
    sums = memory + job.own_bytes - (BLOCK_ROWS + first) * qkv.groups * 4
    norm_some(x, job.residual, layer.input_norm, model, inputs, sums, qkv, first, last, tag, row_tag)
    at = _stamp(clock, NORM, at)
    multiply_rows(qkv, inputs, sums, first, last, job.inner, row_tag, weight_tag, tag)
    at = _stamp(clock, QKV_PRODUCT, at)
    turn_some(layer, model, job, first, last, tag)
    return _stamp(clock, TURN, at)


@njit(cache=True, error_model="numpy")
def _after_attention(
    layer: Any, output: Any, gate_up: Any, down: Any, model: Any, job: Any, first: Any, last: Any, memory: Any,
    clock: Any, at: Any, tag: Any, row_tag: Any, weight_tag: Any,
) -> Any:  # fmt: skip
    """A block of rows, alone: from what was attended to job.delta, what the layer adds."""
    size, width, end = ir.size(row_tag), down.inputs, memory + job.own_bytes
    inputs = memory - first * model.hidden * size
    mlp_inputs = memory + (BLOCK_ROWS * model.hidden - first * width) * size
    mlp = memory + BLOCK_ROWS * (model.hidden + width) * size - first * 2 * width * ir.size(tag)
    sums = end - (BLOCK_ROWS + first) * output.groups * 4
    sum_some(job.inputs, sums, output, first, last, row_tag)
    at = _stamp(clock, SUMS, at)
    multiply_rows(output, job.inputs, sums, first, last, job.delta, row_tag, weight_tag, tag)
    at = _stamp(clock, OUTPUT_PRODUCT, at)
    sums = end - (BLOCK_ROWS + first) * gate_up.groups * 4
    norm_some(job.delta, job.residual, layer.post_norm, model, inputs, sums, gate_up, first, last, tag, row_tag)
    at = _stamp(clock, POST_NORM, at)
    multiply_rows(gate_up, inputs, sums, first, last, mlp, row_tag, weight_tag, tag)
    at = _stamp(clock, GATE_UP_PRODUCT, at)
    sums = end - (BLOCK_ROWS + first) * down.groups * 4
    activate_some(mlp, mlp_inputs, sums, down, first, last, tag, row_tag)
    at = _stamp(clock, ACTIVATION, at)
    multiply_rows(down, mlp_inputs, sums, first, last, job.delta, row_tag, weight_tag, tag)
    return _stamp(clock, DOWN_PRODUCT, at)


@njit(cache=True, error_model="numpy")
def _work(
    layers: Any, matrices: Any, begin: Any, model: Any, job: Any, pieces: Any, windowed: Any, with_head: Any, blocks: Any,
    counters: Any, memory: Any, own: Any, clock: Any,
    tag: Any, row_tag: Any, weight_tag: Any, head_row_tag: Any, head_tag: Any,
) -> None:  # fmt: skip
    """What every thread does. begin: whether the first of these layers is the model's first; own: this thread's room for a
    block of rows, if they go in `blocks` of them."""
    counter, one, count, rows = counters, ir.COUNTER_BYTES, layers.shape[0], job.tokens
    at = ir.ticks()
    x = np.int64(0) if begin else job.delta
    if blocks > 0:
        unit = ir.take_ticket(counter)
        while unit < blocks:
            first, last = block_of(rows, blocks, unit)
            at = _before_attention(
                layers[0], matrices[0, QKV], x, model, job, first, last, own, clock, at, tag, row_tag, weight_tag
            )
            ir.finish_ticket(counter)
            unit = ir.take_ticket(counter)
        ir.wait_finished(counter, blocks)
        at = _stamp(clock, SUMS, at)
    for i in range(count):
        layer = layers[i]
        qkv, output, gate_up, down = matrices[i, QKV], matrices[i, OUTPUT], matrices[i, GATE_UP], matrices[i, DOWN]
        if blocks == 0:
            _norm(x, job.residual, rows, layer.input_norm, model, job.inputs, job.sums, qkv, counter, tag, row_tag)
            at = _stamp(clock, NORM, at)
            _multiply(qkv, job.inputs, job.sums, rows, job.inner, counter + one, row_tag, weight_tag, tag)
            at = _stamp(clock, QKV_PRODUCT, at)
            _turn(layer, model, job, counter + 2 * one, tag)
            at = _stamp(clock, TURN, at)
        _attend(layer, model, job, pieces if layer.window == 0 else windowed, memory, counter + 3 * one, tag, row_tag)
        at = _stamp(clock, ATTENTION, at)
        wanted_only = with_head and i == count - 1  # from here on a row is wanted for its logits only
        if blocks > 0 and not wanted_only:
            unit = ir.take_ticket(counter + 4 * one)
            while unit < blocks:
                first, last = block_of(rows, blocks, unit)
                at = _after_attention(
                    layer, output, gate_up, down, model, job, first, last, own, clock, at, tag, row_tag, weight_tag
                )
                if i + 1 < count:
                    at = _before_attention(
                        layers[i + 1], matrices[i + 1, QKV], job.delta, model, job, first, last, own, clock, at,
                        tag, row_tag, weight_tag,
                    )  # fmt: skip
                ir.finish_ticket(counter + 4 * one)
                unit = ir.take_ticket(counter + 4 * one)
            ir.wait_finished(counter + 4 * one, blocks)
            at = _stamp(clock, SUMS, at)
        else:
            attended, residual = job.inputs, job.residual
            if wanted_only:
                _choose(model, job, counter + PHASES * one, tag, row_tag)
                rows, attended, residual = job.wanted, job.mlp_inputs, job.inner
            _sum_groups(attended, job.sums, rows, output, counter + 4 * one, row_tag)
            at = _stamp(clock, SUMS, at)
            _multiply(output, attended, job.sums, rows, job.delta, counter + 5 * one, row_tag, weight_tag, tag)
            at = _stamp(clock, OUTPUT_PRODUCT, at)
            _norm(
                job.delta, residual, rows, layer.post_norm, model, job.inputs, job.sums, gate_up, counter + 6 * one,
                tag, row_tag,
            )  # fmt: skip
            at = _stamp(clock, POST_NORM, at)
            _multiply(gate_up, job.inputs, job.sums, rows, job.mlp, counter + 7 * one, row_tag, weight_tag, tag)
            at = _stamp(clock, GATE_UP_PRODUCT, at)
            _activate(job, rows, down, counter + 8 * one, tag, row_tag)
            at = _stamp(clock, ACTIVATION, at)
            _multiply(down, job.mlp_inputs, job.mlp_sums, rows, job.delta, counter + 9 * one, row_tag, weight_tag, tag)
            at = _stamp(clock, DOWN_PRODUCT, at)
        x = job.delta
        counter += PHASES * one
    if with_head:
        head = matrices[matrices.shape[0] - 1, 0]
        _norm(
            job.delta, job.inner, rows, model.final_norm, model, job.inputs, job.sums, head, counter + one,
            tag, head_row_tag,
        )  # fmt: skip
        _multiply(head, job.inputs, job.sums, rows, job.logits, counter + 2 * one, head_row_tag, head_tag, _F32)
        _stamp(clock, HEAD, at)


@njit(cache=True, error_model="numpy", parallel=True, nogil=True)
def _run(
    layers: Any, matrices: Any, first: Any, models: Any, jobs: Any, with_head: Any,
    tag: Any, row_tag: Any, weight_tag: Any, head_row_tag: Any, head_tag: Any, workers: Any,
) -> None:  # fmt: skip
    """layers (L,), matrices (L + 1, 4) with the head's in the last row, models (1,), jobs (1,)."""
    model, job = models[0], jobs[0]
    group = model.heads // model.kv_heads
    tables, stride, size = job.tables, job.table_stride, model.block_size
    pieces = cut_pieces(tables, stride, job.starts, job.lengths, job.requests, group, size, 0)
    windowed = cut_pieces(tables, stride, job.starts, job.lengths, job.requests, group, size, 1)
    counters = np.zeros((layers.shape[0] * PHASES + 3) * ir.COUNTER_BYTES + 64, dtype=np.uint8)
    address = (counters.ctypes.data + 63) // 64 * 64
    scratch, scratch_bytes = job.scratch, scratch_floats(model.kv_heads, model.dim) * 4
    clock = job.clock
    blocks = count_blocks(job.tokens, workers) if job.tokens >= MANY_ROWS else np.int64(0)
    own, own_bytes = job.own, job.own_bytes
    for w in prange(workers):
        _work(
            layers, matrices, first, models[0], jobs[0], pieces, windowed, with_head, blocks, address,
            scratch + w * scratch_bytes, own + w * own_bytes, clock + w * (PHASES + 1) * 8,
            tag, row_tag, weight_tag, head_row_tag, head_tag,
        )  # fmt: skip
    ir.keep(counters)


class DecoderStack:
    """Satisfies FusedDecoder. float32 and bfloat16, matrices in panels."""

    ticks: NDArray[np.int64]
    """(threads, PHASE_NAMES): the processor's ticks that each thread spent in each phase since it was last set to 0, waiting
    for the others included."""

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        sizes: DecoderSizes,
        cos_sin: Tensor,
        final_norm: Tensor,
        head: PackedLinear,
    ) -> None:
        """Raises ValueError where `fits` is false."""
        self._weights = (layers, cos_sin, final_norm, head)  # kept alive: the tables hold their addresses
        first = layers[0]
        self._dtype, tag = final_norm.dtype, tag_of(final_norm)
        matrix = _matrices(first)[0]
        row_tags = matrix.row_tag(tag), head.row_tag(tag)
        self._tags = (tag, row_tags[0], matrix.weight_tag, row_tags[1], head.weight_tag)
        self._row_dtype = torch.bfloat16 if all(t is BFLOAT16 for t in row_tags) else torch.float32
        hidden, dim = first.input_norm.shape[0], sizes.head_dim
        self._model = np.zeros(1, MODEL)
        self._model[0] = (
            hidden, sizes.num_heads, sizes.num_kv_heads, dim, cos_sin.data_ptr(), cos_sin.shape[1] // 2,
            final_norm.data_ptr(), 0, sizes.norm_eps, sizes.scale,
        )  # fmt: skip
        self._layers = np.zeros(len(layers), LAYER)
        self._tables = np.zeros((len(layers) + 1, MATRICES), MATRIX)
        for i, layer in enumerate(layers):
            norms = (layer.query_norm, layer.key_norm)
            self._layers[i] = (
                layer.input_norm.data_ptr(), layer.post_norm.data_ptr(),
                *(0 if norm is None else norm.data_ptr() for norm in norms), layer.window, layer.rotary, 0, 0, 0, 0,
            )  # fmt: skip
            self._tables[i] = [matrix.record[0] for matrix in _matrices(layer)]
        self._tables[-1, 0] = head.record[0]
        self._vocab = head.out_features
        self._caches: Sequence[tuple[Tensor, Tensor]] | None = None
        self._room_for: tuple[int, int, int] = (0, 0, 0)
        self._room_at: tuple[int, ...] = ()
        self._room(1, 1, threads())

    def forward(
        self, embedded: Tensor, batch: PagedBatch, caches: Sequence[tuple[Tensor, Tensor]], num_layers: int | None = None
    ) -> Tensor:
        """See FusedDecoder.forward."""
        if caches is not self._caches:
            self._take_caches(caches)
        tokens, wanted, workers = embedded.shape[0], batch.logits_rows.shape[0], threads()
        logits = torch.empty((wanted, self._vocab), dtype=torch.float32)
        tables = batch.block_tables
        jobs = np.zeros(1, PASS)
        jobs[0] = (
            tokens, batch.seq_lens.shape[0], batch.positions.data_ptr(), batch.slot_mapping.data_ptr(),
            batch.query_start_loc.data_ptr(), batch.seq_lens.data_ptr(), tables.data_ptr(), tables.stride(0),
            batch.logits_rows.data_ptr(), wanted, logits.data_ptr(), embedded.data_ptr(),
            *self._room(tokens, wanted, workers),
        )  # fmt: skip
        count = len(self._layers) if num_layers is None else num_layers
        step = max(1, TOKEN_LAYERS_OF_A_CALL // max(1, tokens))
        for first in range(0, count, step):
            last = min(count, first + step)
            matrices = self._tables if last - first == len(self._layers) else self._tables[[*range(first, last), -1]]
            _run(
                self._layers[first:last], matrices, first == 0, self._model, jobs, last == count, *self._tags, workers
            )  # fmt: skip
        return logits

    def _take_caches(self, caches: Sequence[tuple[Tensor, Tensor]]) -> None:
        for layer, (key, value) in zip(self._layers, caches):
            if not (rows_of(key) and rows_of(value) and key.dtype == value.dtype == self._dtype):
                raise ValueError(f"The KV cache must be {self._dtype} and contiguous within a block, got {key.dtype}.")
            for name, tensor in (("key", key), ("value", value)):
                layer[f"{name}_cache"], layer[f"{name}_block"] = tensor.data_ptr(), tensor.stride(0)
        self._model["block_size"] = caches[0][0].shape[2]
        self._caches = caches

    def _room(self, tokens: int, wanted: int, workers: int) -> tuple[int, ...]:
        """Addresses of what a pass writes in between, for so many tokens and threads; kept from pass to pass."""
        rows, apart = max(tokens, wanted), max(min(tokens, MANY_ROWS), wanted)  # apart: that go through a phase together
        if all(need <= have for need, have in zip((rows, apart, workers), self._room_for)):
            return self._room_at
        rows, apart, workers = map(max, zip((rows, apart, workers), self._room_for))
        model, table, row_dtype = self._model[0], self._tables[0], self._row_dtype
        attended = int(model["heads"] * model["dim"])
        hidden, inner, width = int(model["hidden"]), int(table[QKV]["outputs"]), int(table[DOWN]["inputs"])
        groups = int(self._tables["groups"].max())
        own_bytes = BLOCK_ROWS * (
            (hidden + width) * row_dtype.itemsize + 2 * width * self._dtype.itemsize + groups * 4
        )  # fmt: skip
        sizes: list[tuple[int, int, torch.dtype]] = [
            (workers, scratch_floats(int(model["kv_heads"]), int(model["dim"])), torch.float32),
            (workers, own_bytes, torch.uint8),
            (rows, max(hidden, attended), row_dtype),
            (rows, groups, torch.float32),
            (rows, max(inner, hidden), self._dtype),
            (rows, hidden, self._dtype),
            (apart, max(width, attended), row_dtype),
            (apart, groups, torch.float32),
            (apart, 2 * width, self._dtype),
        ]
        self.ticks = np.zeros((workers, len(PHASE_NAMES)), np.int64)
        self._rooms = [torch.zeros((count, columns), dtype=dtype) for count, columns, dtype in sizes]
        self._room_for = rows, apart, workers
        self._room_at = (own_bytes, self.ticks.ctypes.data, *(room.data_ptr() for room in self._rooms))
        return self._room_at


def _matrices(layer: DecoderLayer) -> tuple[Any, Any, Any, Any]:
    return layer.qkv, layer.output, layer.gate_up, layer.down


def fits(layers: Sequence[DecoderLayer], sizes: DecoderSizes, cos_sin: Tensor, head: Any) -> bool:
    """Whether the panel kernels can run this decoder."""
    matrices = [m for layer in layers for m in _matrices(layer)]
    same = len({m.quantization for m in matrices}) == 1 and all(m.in_panels for m in (*matrices, head))
    even = sizes.head_dim % 16 == 0 and all(m.in_features % 2 == 0 for m in matrices)
    table = cos_sin.dtype == torch.float32 and cos_sin.is_contiguous()
    return bool(layers) and same and even and table and tag_of(layers[0].input_norm) is not None


def fuse_decoder(
    layers: Sequence[DecoderLayer], sizes: DecoderSizes, cos_sin: Tensor, final_norm: Tensor, head: Any
) -> DecoderStack | None:
    """The whole decoder in one piece, or None where its parts must be called one by one."""
    return DecoderStack(layers, sizes, cos_sin, final_norm, head) if fits(layers, sizes, cos_sin, head) else None
