"""The numba dialect against the reference."""

import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from nbengine_kernels import Kernels, kernels_for, reference
from nbengine_kernels.cpu.linear import BLOCK_ROWS

from . import checks
from .cases import assert_close, attention_case

dtypes = pytest.mark.parametrize("dtype", checks.DTYPES, ids=["f32", "bf16"])


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    torch.manual_seed(0)
    return kernels_for("cpu", torch.float32, force="cpu")


@dtypes
def test_attention(kernels: Kernels, dtype: torch.dtype) -> None:
    checks.check_attention(kernels, dtype)


@dtypes
def test_requests_that_share_a_prefix(kernels: Kernels, dtype: torch.dtype) -> None:
    checks.check_shared_prefix(kernels, dtype)


def test_attention_edges(kernels: Kernels) -> None:
    checks.check_attention_edges(kernels)


def test_attention_falls_to_the_reference(kernels: Kernels) -> None:
    odd = attention_case([(20, 3)], heads=(2, 1), dim=24)
    assert torch.equal(kernels.paged_attention(**odd), reference.paged_attention(**odd))
    half = attention_case([(20, 3)], heads=(2, 1), dim=32, dtype=torch.float16)
    assert torch.equal(kernels.paged_attention(**half), reference.paged_attention(**half))


@dtypes
@pytest.mark.parametrize("others", [0, 20])  # few pieces of work, cut by head, and many
def test_attention_of_a_request_does_not_depend_on_the_batch(kernels: Kernels, dtype: torch.dtype, others: int) -> None:
    spans = [(100, 1), (33, 33), *[(20 + i, 1) for i in range(others)], (70, 1)]
    case = attention_case(spans, heads=(9, 3), dim=64, dtype=dtype)
    together = kernels.paged_attention(**case)
    alone = {
        **case,
        "query": case["query"][-1:],
        "block_tables": case["block_tables"][-1:],
        "seq_lens": case["seq_lens"][-1:],
    }
    alone["query_start_loc"] = torch.tensor([0, 1], dtype=torch.int32)
    assert torch.equal(kernels.paged_attention(**alone), together[-1:])


@dtypes
def test_norm(kernels: Kernels, dtype: torch.dtype) -> None:
    checks.check_norm(kernels, dtype)


@dtypes
def test_rotary_and_write(kernels: Kernels, dtype: torch.dtype) -> None:
    checks.check_rotary_and_write(kernels, dtype)


@dtypes
def test_activation(kernels: Kernels, dtype: torch.dtype) -> None:
    checks.check_activation(kernels, dtype)


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_sampling(kernels: Kernels, rows: int) -> None:
    checks.check_sampling(kernels, rows, 5000)


@dtypes
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_linear(kernels: Kernels, dtype: torch.dtype, quantization: Any) -> None:
    checks.check_linear(kernels, dtype, quantization)


@dtypes
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_a_row_of_a_panel_product_does_not_depend_on_the_others(
    kernels: Kernels, dtype: torch.dtype, quantization: Any
) -> None:
    packed = kernels.PackedLinear(torch.randn(200, 64).to(dtype), quantization=quantization)
    x = torch.randn(BLOCK_ROWS + 30, 64).to(dtype)
    together = packed(x)
    for first, last in ((0, 1), (0, 2), (3, 4), (1, 7), (2, 13), (5, BLOCK_ROWS + 5), (BLOCK_ROWS + 29, BLOCK_ROWS + 30)):
        assert torch.equal(packed(x[first:last]), together[first:last])


def test_float16_is_served(kernels: Kernels) -> None:
    x, weight = torch.randn(3, 64).half(), torch.randn(64).half()
    assert torch.equal(kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    assert torch.equal(kernels.silu_and_mul(x), reference.silu_and_mul(x))
    matrix = torch.randn(8, 64).half()
    assert_close(kernels.PackedLinear(matrix)(x), reference.PackedLinear(matrix)(x))


@dtypes
def test_two_threads_give_what_one_gives(kernels: Kernels, dtype: torch.dtype) -> None:
    case = attention_case([(100, 100), (70, 1)], heads=(9, 3), dim=64, dtype=dtype)
    x, weight = torch.randn(2, 40, 1024).to(dtype), torch.randn(1024).to(dtype)
    packed = kernels.PackedLinear(torch.randn(200, 1024).to(dtype))

    def run() -> list[torch.Tensor]:
        outputs = kernels.rms_norm(x[0], weight, 1e-5, x[1])
        return [kernels.paged_attention(**case), *outputs, kernels.silu_and_mul(x[0]), packed(x[0])]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = run()
        torch.set_num_threads(2)
        assert all(torch.equal(got, want) for got, want in zip(run(), wanted))
        checks.check_attention_edges(kernels)
        checks.check_rotary_and_write(kernels, dtype)
    finally:
        torch.set_num_threads(before)


def test_a_second_process_finds_the_compiled_kernels(kernels: Kernels) -> None:
    x = torch.ones(2, 32)
    kernels.rms_norm(x, x[0], 1e-5)
    code = (
        "import torch; from nbengine_kernels import cpu; from nbengine_kernels.cpu import norm; x = torch.ones(2, 32);"
        "cpu.rms_norm(x, x[0], 1e-5); s = norm.norm_rows.stats;"
        "print(sum(s.cache_hits.values()), sum(s.cache_misses.values()))"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]
    assert time.perf_counter() - began < 60  # a machine that does nothing else needs 2 s


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_bfloat16_products_of_codes_are_exact(kernels: Kernels, quantization: Any) -> None:
    """Codes and small whole inputs are bfloat16 numbers, so each row of the identity gives back a weight, exactly."""
    torch.manual_seed(0)
    weight = torch.randn(150, 96).bfloat16()
    eye = torch.eye(96, dtype=torch.bfloat16)
    wanted = reference.PackedLinear(weight.float(), quantization=quantization).weight.to(torch.bfloat16)
    assert torch.equal(kernels.PackedLinear(weight, quantization=quantization)(eye).T, wanted)


def test_inputs_far_from_zero_do_not_harm_int4(kernels: Kernels) -> None:
    """Its offsets cancel most of the sums of codes then."""
    weight, x = torch.randn(64, 576).bfloat16() / 24, (torch.randn(7, 576) + 20.0).bfloat16()
    wanted = reference.PackedLinear(weight.double(), quantization="int4")(x.double())
    assert_close(kernels.PackedLinear(weight, quantization="int4")(x), wanted.to(torch.bfloat16))


def test_rows_that_the_weight_does_not_have(kernels: Kernels) -> None:
    packed = kernels.PackedLinear(torch.randn(100, 64))
    for indices in ([0, 100], [-1], [7] * 400 + [100]):  # by one thread, and by several
        with pytest.raises(IndexError, match="1 of"):
            packed.take_rows(torch.tensor(indices, dtype=torch.int32))
