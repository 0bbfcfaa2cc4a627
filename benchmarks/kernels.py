"""Each kernel: the plain torch form (reference) beside the CPU form, in turns, in one run.

    python benchmarks/kernels.py [--dtype bfloat16 float32] [--repeats 9] [--threads N] [--json]

Shapes are SmolLM2-135M's (9 query and 3 KV heads of 64, hidden 576, ffn 1,536, vocabulary 49,152). Medians of the repeats,
in milliseconds; beside a busy neighbour one thread gives steadier ratios than two, which wait for each other. The linear
rows are one layer's four matrices. Attention's reference reads a block table with plain torch operations, so its ratio says
what paging costs without a kernel; "sdpa" gathers each request and calls torch's SDPA.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from nbengine_kernels import Kernels, build_rotary_table, kernels_for
from torch import Tensor

HEADS, KV_HEADS, DIM, HIDDEN, FFN, VOCABULARY, BLOCK = 9, 3, 64, 576, 1536, 49_152, 16
MATRICES = (((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN))
BATCHES: dict[str, list[tuple[int, int]]] = {
    "decode 1 x 96": [(96, 1)],
    "decode 16 x 160": [(160, 1)] * 16,
    "decode 32 x 512": [(512, 1)] * 32,
    "prefill 16 x 128": [(128, 128)] * 16,
    "prefill 32 x 32 after 512": [(544, 32)] * 32,
}
Forms = dict[str, Callable[[], Any]]


def attention_case(spans: list[tuple[int, int]], dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of `paged_attention` for requests of (sequence length, query length), blocks shuffled."""
    width = max(-(-length // BLOCK) for length, _ in spans)
    blocks = torch.randperm(len(spans) * width).int().view(len(spans), width)
    caches = torch.randn(2, blocks.numel(), KV_HEADS, BLOCK, DIM).to(dtype)
    starts = torch.tensor([0, *[n for _, n in spans]]).cumsum(0).int()
    return {
        "query": torch.randn(int(starts[-1]), HEADS, DIM).to(dtype),
        "key_cache": caches[0],
        "value_cache": caches[1],
        "block_tables": blocks,
        "query_start_loc": starts,
        "seq_lens": torch.tensor([length for length, _ in spans]).int(),
        "scale": DIM**-0.5,
    }


def gather_and_sdpa(case: dict[str, Any]) -> Tensor:
    """What one would write with torch alone: each request's keys gathered, then SDPA."""
    out = torch.empty_like(case["query"])
    starts = case["query_start_loc"].tolist()
    for r, length in enumerate(case["seq_lens"].tolist()):
        n = starts[r + 1] - starts[r]
        blocks = case["block_tables"][r, : -(-length // BLOCK)].long()
        keys, values = (
            case[name][blocks].transpose(0, 1).flatten(1, 2)[None, :, :length] for name in ("key_cache", "value_cache")
        )
        mask = None if n in (1, length) else torch.ones(n, length, dtype=torch.bool).tril(length - n)
        query = case["query"][starts[r] : starts[r + 1]].transpose(0, 1)[None]
        attended = F.scaled_dot_product_attention(query, keys, values, mask, is_causal=n == length > 1, enable_gqa=True)
        out[starts[r] : starts[r + 1]] = attended[0].transpose(0, 1)
    return out


def layer(kernels: Kernels, weights: list[Tensor], x: dict[int, Tensor], quantization: Any = None) -> Callable[[], Any]:
    packed = [kernels.PackedLinear(weight, quantization=quantization) for weight in weights]
    return lambda: [linear(x[linear.in_features]) for linear in packed]


def functions(reference: Kernels, cpu: Kernels, dtype: torch.dtype) -> Iterator[tuple[str, Forms]]:
    """Every row of the table: its name and its forms."""
    for name, spans in BATCHES.items():
        case = attention_case(spans, dtype)
        forms: Forms = {
            which: partial(kernels.paged_attention, **case) for which, kernels in (("reference", reference), ("cpu", cpu))
        }
        yield f"paged_attention, {name}", {**forms, "sdpa": partial(gather_and_sdpa, case)}
    both = (("reference", reference), ("cpu", cpu))
    table = build_rotary_table(DIM, 2048)
    for rows in (1, 16, 512):
        x, residual, weight = (
            torch.randn(rows, HIDDEN).to(dtype),
            torch.randn(rows, HIDDEN).to(dtype),
            torch.ones(HIDDEN).to(dtype),
        )
        yield f"rms_norm + residual, {rows} rows", {n: partial(k.rms_norm, x, weight, 1e-5, residual) for n, k in both}
        gate_up = torch.randn(rows, 2 * FFN).to(dtype)
        yield f"silu_and_mul, {rows} rows", {n: partial(k.silu_and_mul, gate_up) for n, k in both}
        heads = torch.randn(rows, HEADS + 2 * KV_HEADS, DIM).to(dtype)
        q, k, v = heads[:, :HEADS], heads[:, HEADS:-KV_HEADS], heads[:, -KV_HEADS:]
        cache = torch.zeros(2, 64, KV_HEADS, BLOCK, DIM, dtype=dtype)
        given = (torch.arange(rows), q, k, v, table, cache[0], cache[1], torch.randperm(1024)[:rows])
        yield f"rotary_write_kv, {rows} rows", {n: partial(which.rotary_write_kv, *given) for n, which in both}
    weights = [torch.randn(shape).to(dtype) * 0.02 for shape in MATRICES]
    for rows in (1, 4, 16, 64, 256):
        inputs = {width: torch.randn(rows, width).to(dtype) for width in (HIDDEN, FFN)}
        quantized = {f"cpu {q}": layer(cpu, weights, inputs, q) for q in ("int8", "int4")}
        yield f"linear, {rows} rows", {n: layer(k, weights, inputs) for n, k in both} | quantized
    logits = torch.randn(16, VOCABULARY) * 3
    top_k, top_p, min_p = torch.full((16,), 50), torch.full((16,), 0.9), torch.full((16,), 0.05)
    for name, setting in (
        ("top-k", (top_k, None, None)),
        ("top-p", (None, top_p, None)),
        ("all three", (top_k, top_p, min_p)),
    ):
        yield f"sample_filter, 16 rows, {name}", {n: partial(k.sample_filter, logits, *setting) for n, k in both}
    bitmask = torch.randint(-(2**31), 2**31, (16, VOCABULARY // 32)).int()
    target = logits.clone()
    yield "apply_grammar_bitmask, 16 rows", {n: partial(k.apply_grammar_bitmask, target, bitmask) for n, k in both}


def measure(forms: Forms, repeats: int) -> dict[str, float]:
    """Median milliseconds of each form; the forms take turns."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(repeats + 1):
        for name, call in forms.items():
            began = perf_counter()
            call()
            if turn:  # the first may compile
                times[name].append((perf_counter() - began) * 1e3)
    return {name: median(taken) for name, taken in times.items()}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"], choices=["bfloat16", "float32"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    print(f"{'function':<44}{'dtype':<10}{'reference ms':>13}{'cpu ms':>9}{'ratio':>8}  others (ms)")
    for name in arguments.dtype:
        dtype = getattr(torch, name)
        reference, cpu = (kernels_for("cpu", dtype, force=dialect) for dialect in ("reference", "cpu"))
        for function, forms in functions(reference, cpu, dtype):
            taken = measure(forms, arguments.repeats)
            rows.append({"function": function, "dtype": name, "ms": taken, "ratio": taken["reference"] / taken["cpu"]})
            others = ", ".join(f"{form} {ms:.3f}" for form, ms in taken.items() if form not in ("reference", "cpu"))
            ratio = f"{rows[-1]['ratio']:.1f}x"
            print(f"{function:<44}{name:<10}{taken['reference']:>13.3f}{taken['cpu']:>9.3f}{ratio:>8}  {others}", flush=True)
    if arguments.json:
        print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
