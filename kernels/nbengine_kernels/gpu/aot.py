"""Compile every Triton kernel ahead of time, without a GPU, and say what it uses.

`python -m nbengine_kernels.gpu.aot [sm_80 sm_90 gfx942]` prints registers, spills and shared memory.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nbengine_kernels.gpu import activation, attention, linear, norm, rotary, sampling

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMIT_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}
"""Shared memory that one program may have."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel with the types and constants of one use."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True, slots=True)
class Usage:
    """What a compiled kernel takes. None: the tool that says it is missing."""

    case: str
    target: str
    registers: int | None
    spill_bytes: int | None
    shared_bytes: int


def cases() -> Iterator[Case]:
    """One case a kernel, dtype and shape that matters."""
    for dtype in ("bf16", "fp16", "fp32"):
        yield from _attention_cases(dtype)
        for add in (False, True):
            yield Case(
                f"rms_norm{'+residual' if add else ''} {dtype}", norm.rms_norm_kernel,
                {**_pointers(dtype, "x residual weight y total"), "eps": "fp32",
                 **_ints("x_stride residual_stride y_stride total_stride width")},
                {"ADD": add, "BLOCK": 4096},
            )  # fmt: skip
        yield Case(
            f"rotary {dtype}", rotary.rotary_kernel,
            {"positions": "*i64", **_pointers(dtype, "query key"), "cos_sin": "*fp32", **_ints("query_stride key_stride")},
            {"HEADS": 32, "DIM": 128, "HALF": 64, "BLOCK": 64}, warps=1,
        )  # fmt: skip
        yield Case(
            f"write_kv {dtype}", rotary.write_kv_kernel,
            {**_pointers(dtype, "key value key_cache value_cache"), "slots": "*i64",
             **_ints("key_stride value_stride key_block_stride value_block_stride")},
            {"BLOCK_SIZE": 16, "DIM": 128, "BLOCK": 128}, warps=1,
        )  # fmt: skip
        for kind, name in enumerate(("silu", "gelu", "gelu_tanh")):
            yield Case(
                f"{name}_and_mul {dtype}", activation.gated_kernel,
                {**_pointers(dtype, "x y"), **_ints("x_stride y_stride width")}, {"KIND": kind, "BLOCK": 1024},
            )  # fmt: skip
        for int4 in (False, True):
            scale = _pointers("fp32", "scale zero")
            yield Case(
                f"linear {'int4' if int4 else 'int8'} {dtype}", linear.quantized_linear_kernel,
                {**_pointers(dtype, "x bias y"), "codes": "*u8" if int4 else "*i8", **scale,
                 **_ints("rows columns depth x_stride y_stride")},
                {"INT4": int4, "HAS_BIAS": True, "GROUP": 32, "ROWS": 16, "COLUMNS": 64, "DEPTH": 32, "WIDEN": False},
            )  # fmt: skip
    yield Case(
        "sample_filter fp32", sampling.filter_kernel,
        {"logits": "*fp32", "top_k": "*i32", "top_p": "*fp32", "min_p": "*fp32", "width": "i32"},
        {"HAS_K": True, "HAS_P": True, "HAS_MIN": True, "BLOCK": 1024},
    )  # fmt: skip
    yield Case(
        "grammar_bitmask fp32", sampling.bitmask_kernel,
        {"logits": "*fp32", "bitmask": "*i32", **_ints("stride mask_stride width")}, {"BLOCK": 1024},
    )  # fmt: skip


def _attention_cases(dtype: str) -> Iterator[Case]:
    types = {
        **_pointers(dtype, "query key_cache value_cache out"),
        **_pointers("i32", "block_tables starts lengths"),
        **_ints("query_stride key_stride value_stride table_stride out_stride requests window"),
        "scale": "fp32",
        "soft_cap": "fp32",
    }
    for dim in (64, 80, 128, 256):
        for prefill in (False, True):
            padded = triton.next_power_of_2(dim)
            rows, warps, stages = attention.attention_launch(4, padded, 4 if dtype == "fp32" else 2, prefill)
            constants = {
                "BLOCK_SIZE": 16, "DIM": dim, "PADDED_DIM": padded, "GROUP": 4, "KV_HEADS": 8,
                "ROWS": rows, "KEYS": attention.TILE_KEYS, "WIDEN": False,
            }  # fmt: skip
            name = f"attention {'prefill' if prefill else 'decode'} dim {dim} {dtype}"
            yield Case(name, attention.attention_kernel, types, constants, warps, stages)


def _pointers(dtype: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), f"*{dtype}")


def _ints(names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), "i32")


def compile_case(case: Case, target: str) -> Usage:
    """Compile one case for one target.

    Raises:
        Exception: whatever Triton raises where the kernel does not compile.
    """
    order = case.kernel.arg_names
    signature = {name: "constexpr" if name in case.constants else case.types[name] for name in order}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(order) if signature[name].startswith("*")}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=case.constants, attrs=aligned)
    options = {"num_warps": case.warps, "num_stages": case.stages}
    compiled = triton.compile(source, target=TARGETS[target], options=options)
    registers, spills = (
        _amd_usage(compiled.asm["amdgcn"]) if target.startswith("gfx") else _nvidia_usage(compiled.asm["cubin"])
    )
    return Usage(case.name, target, registers, spills, compiled.metadata.shared)


def _amd_usage(text: str) -> tuple[int | None, int | None]:
    found = {key: re.search(rf"\.{key}:\s+(\d+)", text) for key in ("vgpr_count", "vgpr_spill_count")}
    count, spilled = (int(match.group(1)) if match else None for match in found.values())
    return count, None if spilled is None else 4 * spilled


def _nvidia_usage(binary: bytes) -> tuple[int | None, int | None]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        return None, None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(binary)
        text = subprocess.run([tool, "--dump-resource-usage", file], capture_output=True, text=True, check=False).stdout
    found = [re.search(rf"\b{key}:(\d+)", text) for key in ("REG", "STACK")]
    registers, spilled = (int(match.group(1)) if match else None for match in found)
    return registers, spilled


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 where a kernel does not compile or takes too much shared memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=f"of {', '.join(TARGETS)}")
    targets = parser.parse_args(arguments).targets
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 is set: interpreted kernels can't be compiled.")
    write = sys.stdout.write
    write(f"{'kernel':<36}{'target':<9}{'registers':>10}{'spill B':>9}{'shared B':>10}\n")
    failed = False
    for case in cases():
        for target in targets:
            try:
                usage = compile_case(case, target)
            except Exception as error:
                failed = True
                write(f"{case.name:<36}{target:<9}  does not compile: {str(error).splitlines()[0]}\n")
                continue
            too_much = usage.shared_bytes > SHARED_LIMIT_BYTES[target]
            failed |= too_much
            numbers = ["?" if n is None else str(n) for n in (usage.registers, usage.spill_bytes)]
            mark = "  too much" if too_much else ""
            write(f"{case.name:<36}{target:<9}{numbers[0]:>10}{numbers[1]:>9}{usage.shared_bytes:>10}{mark}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
