"""The Triton dialect: interpreted against the reference, and compiled ahead of time. Needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

FEW = (
    "attention prefill dim 128 bf16",
    "rms_norm+residual bf16",
    "linear int4 bf16",
    "write_kv bf16",
    "grammar_bitmask fp32",
)


def _run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**{k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_interpreted_kernels_agree_with_the_reference() -> None:
    code = "from tests.kernels.checks import check_all; from nbengine_kernels import gpu; check_all(gpu, small=True)"
    _run(code, TRITON_INTERPRET="1")


COMPILE = """
from nbengine_kernels.gpu.aot import SHARED_LIMIT_BYTES, TARGETS, cases, compile_case
for case in cases():
    for target in TARGETS:
        if {few} is None or (case.name in {few} and target != "sm_80"):
            usage = compile_case(case, target)
            assert usage.shared_bytes <= SHARED_LIMIT_BYTES[target], usage
            assert usage.registers, usage
            print(usage)
"""


def test_kernels_compile_ahead_of_time() -> None:
    assert _run(COMPILE.format(few=FEW)).count("Usage") == 2 * len(FEW)


@pytest.mark.slow
def test_every_kernel_compiles_for_every_target() -> None:
    assert _run(COMPILE.format(few=None)).count("Usage") > 100
