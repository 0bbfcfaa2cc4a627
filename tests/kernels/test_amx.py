"""What runs by the processor's tiles where it has them, and otherwise must come out the same: every shape that cuts them."""

from typing import Any

import pytest
import torch
from nbengine_kernels import cpu, reference
from nbengine_kernels.cpu import amx_linear

from tests.kernels.cases import attention_case


def test_packing_in_tiles_keeps_the_weight() -> None:
    weight = torch.randn(100, 96).to(torch.bfloat16)
    panels = amx_linear.pack_tiles(weight)
    assert panels.shape == (2, 4, 3, 16, 16, 2)
    assert panels[0, 1, 2, 5, 7].tolist() == weight[16 + 7, 64 + 10 : 64 + 12].tolist()  # column 1, step 2, pair 5, output 7
    assert torch.equal(amx_linear.unpack_tiles(panels)[:100], weight)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 127, 129, 200])
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 64), (96, 100), (576, 33), (160, 200)])
def test_every_cut_of_rows(rows: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(rows)
    weight, bias = torch.randn(outputs, inputs).to(torch.bfloat16), torch.randn(outputs).to(torch.bfloat16)
    x = torch.randn(rows, inputs).to(torch.bfloat16)
    layer = cpu.PackedLinear(weight, bias)
    y = layer(x)
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(y.double(), exact, rtol=2**-8, atol=1e-3)
    for r in {0, rows // 2, rows - 1}:
        assert torch.equal(layer(x[r : r + 1]), y[r : r + 1])
    chosen = torch.randint(outputs, (rows,))
    assert torch.equal(layer.take_rows(chosen), weight[chosen])
    torch.testing.assert_close(layer(x.float()).double(), exact, rtol=1e-4, atol=1e-3)  # rows of another type


@pytest.mark.parametrize("rows", [1, 16, 17, 33, 129])
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 64), (96, 100), (576, 33)])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_every_cut_of_rows_of_codes(rows: int, inputs: int, outputs: int, quantization: Any) -> None:
    torch.manual_seed(rows)
    weight, bias = torch.randn(outputs, inputs).to(torch.bfloat16), torch.randn(outputs).to(torch.bfloat16)
    x = torch.randn(rows, inputs).to(torch.bfloat16)
    layer = cpu.PackedLinear(weight, bias, quantization=quantization)
    plain = reference.PackedLinear(weight.double(), quantization=quantization).weight
    y, exact = layer(x), x.double() @ plain.double().T + bias.double()
    torch.testing.assert_close(y.double(), exact, rtol=2**-8, atol=1e-3)
    for r in {0, rows // 2, rows - 1}:
        assert torch.equal(layer(x[r : r + 1]), y[r : r + 1])


@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (5, 1), (8, 1), (14, 2)])
@pytest.mark.parametrize(("dim", "block_size"), [(32, 16), (64, 32), (96, 16), (128, 48)])
def test_every_group_of_heads(heads: tuple[int, int], dim: int, block_size: int) -> None:
    spans = [(1, 1), (15, 1), (33, 1), (97, 1), (64, 64), (77, 2), (130, 45)]
    case = attention_case(spans, heads=heads, dim=dim, block_size=block_size, dtype=torch.bfloat16)
    mine, theirs = cpu.paged_attention(**case), reference.paged_attention(**case)
    torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)
