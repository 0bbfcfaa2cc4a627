"""Which dialect serves a device and a dtype."""

import importlib
import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast, overload

import torch
from torch import Tensor

from nbengine_kernels.decoder import DecoderLayer, DecoderSizes, FusedDecoder, LinearOperator

DIALECTS = ("reference", "cpu", "gpu")
_NEEDS = {"reference": "torch", "cpu": "numba", "gpu": "triton"}
_warned: set[str] = set()


class _MakesLinear(Protocol):
    def __call__(
        self, weight: Tensor, bias: Tensor | None = None, *, quantization: Literal["int8", "int4"] | None = None
    ) -> LinearOperator: ...


class Kernels(Protocol):
    """The functions that every dialect has. The docstrings of `nbengine_kernels.reference` are the contract."""

    @property
    def PackedLinear(self) -> _MakesLinear: ...

    def fuse_decoder(
        self, layers: Sequence[DecoderLayer], sizes: DecoderSizes, cos_sin: Tensor, final_norm: Tensor, head: LinearOperator
    ) -> FusedDecoder | None: ...

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        query_start_loc: Tensor,
        seq_lens: Tensor,
        *,
        scale: float,
        sliding_window: int = 0,
        soft_cap: float = 0.0,
        out: Tensor | None = None,
    ) -> Tensor: ...

    def write_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None: ...

    @overload
    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, residual: None = None, *, out: Tensor | None = None
    ) -> Tensor: ...
    @overload
    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        residual: Tensor,
        *,
        out: Tensor | None = None,
        residual_out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    def rotary_embedding(self, positions: Tensor, query: Tensor, key: Tensor, cos_sin: Tensor) -> None: ...

    def rotary_write_kv(
        self,
        positions: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos_sin: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
    ) -> None: ...

    def silu_and_mul(self, x: Tensor, out: Tensor | None = None) -> Tensor: ...

    def gelu_and_mul(
        self, x: Tensor, approximate: Literal["none", "tanh"] = "none", out: Tensor | None = None
    ) -> Tensor: ...

    def sample_filter(
        self,
        logits: Tensor,
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        min_p: Tensor | None = None,
        *,
        out: Tensor | None = None,
    ) -> Tensor: ...

    def top_k_top_p_min_p(
        self,
        logits: Tensor,
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        min_p: Tensor | None = None,
        *,
        out: Tensor | None = None,
    ) -> Tensor: ...

    def likeliest(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]: ...

    def apply_grammar_bitmask(self, logits: Tensor, bitmask: Tensor) -> Tensor: ...


def available_dialects() -> tuple[str, ...]:
    """The dialects whose library is installed (nothing is imported to find out)."""
    return tuple(name for name in DIALECTS if importlib.util.find_spec(_NEEDS[name]) is not None)


def kernels_for(device: torch.device | str, dtype: torch.dtype, *, force: str | None = None) -> Kernels:
    """The dialect for tensors of `dtype` on `device`, as a module that satisfies `Kernels`.

    CPU tensors go to `cpu` (float32, bfloat16) or `reference` (any other dtype), CUDA and ROCm tensors to `gpu`, other
    devices to `reference`. Where numba or Triton is missing the answer is `reference`, with one warning a process.

    Args:
        device: where the tensors live.
        dtype: the activations' dtype.
        force: a dialect's name, or None or "" to choose by device. The engine passes the value of NBENGINE_KERNELS
            here; this package reads no environment variable.

    Raises:
        ValueError: `force` names no dialect.
        ImportError: `force` names a dialect whose library is not installed.
    """
    if force:
        if force not in DIALECTS:
            raise ValueError(f"No kernel dialect is called {force!r}. Choose one of {', '.join(DIALECTS)}.")
        return _load(force)
    kind = torch.device(device).type
    if kind == "cpu":
        name = "cpu" if dtype in (torch.float32, torch.bfloat16) else "reference"
    else:
        name = "gpu" if kind == "cuda" else "reference"
    if name not in available_dialects():
        if name not in _warned:
            _warned.add(name)
            warnings.warn(
                f"The {name} kernels need {_NEEDS[name]}, which is not installed: the slower reference kernels serve.",
                RuntimeWarning,
                stacklevel=2,
            )
        name = "reference"
    return _load(name)


def _load(name: str) -> Kernels:
    module: Any = importlib.import_module(f"nbengine_kernels.{name}")
    return cast("Kernels", module)
