"""Tables of cosines and sines for rotary position embeddings, with the usual ways to stretch them.

Sources: RoFormer (Su et al. 2021) for the default; Chen et al. 2023 (position interpolation) for `linear`; the Llama
3.1 release for `llama3`; YaRN (Peng et al. 2023) for `yarn`. Parameter names are those of transformers' configs.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def rotary_frequencies(
    rotary_dim: int,
    *,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    max_position_embeddings: int | None = None,
) -> tuple[Tensor, float]:
    """Angular frequency of each rotated pair, and the factor by which cosines and sines are multiplied.

    Args:
        rotary_dim: how many of a head's dimensions turn (even).
        base: "rope_theta". A "rope_theta" inside `scaling` wins.
        scaling: a transformers "rope_scaling" or "rope_parameters" mapping; its "rope_type" (or "type") is one of
            default, linear, llama3, yarn. None means default.
        max_position_embeddings: the length the model was trained on, where `scaling` does not say it.

    Returns:
        `(rotary_dim / 2,)` float32 frequencies in radians a position, and the attention factor (1 except for yarn).

    Raises:
        ValueError: an unknown type of scaling, an odd `rotary_dim`, or a needed parameter that is missing.
    """
    if rotary_dim <= 0 or rotary_dim % 2:
        raise ValueError(f"rotary_dim must be even and positive, got {rotary_dim}.")
    parameters = dict(scaling or {})
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    base = float(parameters.get("rope_theta") or base)
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).to(torch.float32) / rotary_dim
    frequencies = 1.0 / (base**exponents)
    match kind:
        case "default":
            return frequencies, 1.0
        case "linear":
            return frequencies / _number(parameters, "factor", kind), 1.0
        case "llama3":
            return _llama3(frequencies, parameters, max_position_embeddings), 1.0
        case "yarn":
            return _yarn(frequencies, rotary_dim, base, parameters, max_position_embeddings)
    raise ValueError(f"Rotary scaling {kind!r} is not known. Known: default, linear, llama3, yarn.")


def build_rotary_table(
    rotary_dim: int,
    max_position: int,
    *,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    max_position_embeddings: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The `cos_sin` table that `rotary_embedding` reads.

    Args:
        rotary_dim: head_dim, or head_dim * partial_rotary_factor.
        max_position: rows of the table: positions 0 to max_position - 1.
        base, scaling, max_position_embeddings: as for `rotary_frequencies`.
        dtype: of the table. Angles are computed in float32 in any case.
        device: where the table goes.

    Returns:
        `(max_position, rotary_dim)`: row p holds rotary_dim / 2 cosines, then as many sines.
    """
    frequencies, factor = rotary_frequencies(
        rotary_dim, base=base, scaling=scaling, max_position_embeddings=max_position_embeddings
    )
    angles = torch.arange(max_position, dtype=torch.float32)[:, None] * frequencies[None, :]
    return (torch.cat((angles.cos(), angles.sin()), dim=-1) * factor).to(device=device, dtype=dtype)


def _number(parameters: Mapping[str, Any], name: str, kind: str) -> float:
    value = parameters.get(name)
    if value is None:
        raise ValueError(f"Rotary scaling {kind!r} needs {name!r}.")
    return float(value)


def _trained_length(parameters: Mapping[str, Any], max_position_embeddings: int | None, kind: str) -> float:
    value = parameters.get("original_max_position_embeddings") or max_position_embeddings
    if value is None:
        raise ValueError(f"Rotary scaling {kind!r} needs 'original_max_position_embeddings'.")
    return float(value)


def _llama3(frequencies: Tensor, parameters: Mapping[str, Any], max_position_embeddings: int | None) -> Tensor:
    """Slow turns are stretched by `factor`, fast ones kept, those between the two bounds blended."""
    factor = _number(parameters, "factor", "llama3")
    low = _number(parameters, "low_freq_factor", "llama3")
    high = _number(parameters, "high_freq_factor", "llama3")
    turns = _trained_length(parameters, max_position_embeddings, "llama3") * frequencies / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / factor)


def _yarn(
    frequencies: Tensor, rotary_dim: int, base: float, parameters: Mapping[str, Any], max_position_embeddings: int | None
) -> tuple[Tensor, float]:
    """Pairs that turn more than `beta_fast` times in the trained length are kept, below `beta_slow` stretched."""
    length = _trained_length(parameters, max_position_embeddings, "yarn")
    factor = parameters.get("factor")
    if factor is None:
        if max_position_embeddings is None:
            raise ValueError("Rotary scaling 'yarn' needs 'factor'.")
        factor = max_position_embeddings / length
    factor = float(factor)

    def pair_that_turns(times: float) -> float:
        return rotary_dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(base))

    first = pair_that_turns(parameters.get("beta_fast") or 32)
    last = pair_that_turns(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    if first == last:
        last += 0.001
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0.0, 1.0)
    stretched = frequencies / factor * ramp + frequencies * (1.0 - ramp)
    return stretched, _yarn_attention_factor(factor, parameters)


def _yarn_attention_factor(factor: float, parameters: Mapping[str, Any]) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)
