"""Vectors as values of compiled functions, against numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from nbengine_kernels.cpu import vectors as v
from nbengine_kernels.cpu.ir import LANES
from nbengine_kernels.cpu.runtime import BFLOAT16, FLOAT32
from numba import njit


@njit(error_model="numpy")
def _exp2(x: Any, y: Any, n: Any) -> None:
    for i in range(0, n, LANES):
        v.store(y, i, v.exp2(v.load(x, i, FLOAT32)), FLOAT32)


def test_powers_of_two() -> None:
    x = np.linspace(-126, 126.9, 1000 * LANES, dtype=np.float32)
    y = np.zeros_like(x)
    _exp2(x.ctypes.data, y.ctypes.data, len(x))
    np.testing.assert_allclose(y, 2.0 ** x.astype(np.float64), rtol=3e-7)
    x[:LANES] = [-160.0, -1e30, -np.inf, *([0] * (LANES - 3))]
    _exp2(x.ctypes.data, y.ctypes.data, LANES)
    assert y[:3].tolist() == [0, 0, 0]  # what is hidden weighs nothing
    assert y[3:LANES].tolist() == [1] * (LANES - 3)


@njit(error_model="numpy")
def _sigmoid(x: Any, y: Any, n: Any) -> None:
    for i in range(0, n, LANES):
        v.store(y, i, v.sigmoid(v.load(x, i, FLOAT32)), FLOAT32)


def test_sigmoid() -> None:
    x = np.concatenate([np.linspace(-87, 87, 1000 * LANES - 4), [-1e30, 1e30, -np.inf, np.inf]]).astype(np.float32)
    y = np.zeros_like(x)
    _sigmoid(x.ctypes.data, y.ctypes.data, len(x))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(y[:-4], 1 / (1 + np.exp(-wide[:-4])), rtol=1e-5)
    np.testing.assert_allclose(y[-4:], [0, 1, 0, 1], atol=1e-37)


@njit(error_model="numpy")
def _sum_some(x: Any, y: Any, count: Any, tag: Any) -> Any:
    value = v.load_some(x, 0, count, tag)
    v.store_some(y, 0, value + value, count, tag)
    return v.total(value)


@pytest.mark.parametrize("count", [0, 1, 7, LANES - 1, LANES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_some_elements(count: int, dtype: torch.dtype) -> None:
    """Neither read nor written is what lies behind them."""
    tag = FLOAT32 if dtype == torch.float32 else BFLOAT16
    x = torch.arange(1, LANES + 1).to(dtype)
    x[count:] = torch.nan
    y = torch.full((LANES,), 7.0, dtype=dtype)
    assert _sum_some(x.data_ptr(), y.data_ptr(), count, tag) == count * (count + 1) / 2
    assert torch.equal(y[:count], 2 * x[:count])
    assert (y[count:] == 7).all()


@njit(error_model="numpy")
def _round(x: Any, y: Any, tag: Any) -> None:
    v.store(y, 0, v.rounded(v.load(x, 0, FLOAT32), tag), FLOAT32)


def test_rounding_is_torchs() -> None:
    x = torch.randn(LANES)
    x[:4] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -torch.inf])  # ties to even; what becomes infinite
    y = torch.zeros(LANES)
    _round(x.data_ptr(), y.data_ptr(), BFLOAT16)
    assert torch.equal(y, x.bfloat16().float())
    x[0] = torch.nan
    _round(x.data_ptr(), y.data_ptr(), BFLOAT16)
    assert y[0].isnan()
