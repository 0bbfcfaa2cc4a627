"""Rotary position embedding."""

import torch
from torch import Tensor

from nbengine_kernels.reference.cache import write_kv


def rotary_embedding(positions: Tensor, query: Tensor, key: Tensor, cos_sin: Tensor) -> None:
    """Turn the first rot_dim dimensions of each head by its position's angles, in place.

    Half-rotated ("neox") order: dimension i pairs with i + rot_dim / 2. Dimensions from rot_dim on stay as they are.

    Args:
        positions: (T,) int64 or int32.
        query: (T, H, D), key: (T, Hkv, D); rows may be strided, a row's (heads, D) contiguous. Changed in place.
        cos_sin: (max_pos, rot_dim), contiguous, from `build_rotary_table`: cosines, then sines.

    Source: Su et al. 2021 (RoFormer), in GPT-NeoX's order.
    """
    cos, sin = cos_sin[positions.long()].float().unsqueeze(1).chunk(2, dim=-1)  # (T, 1, rot_dim / 2) each
    rotary_dim = cos_sin.shape[-1]
    for heads in (query, key):
        first, second = heads[..., :rotary_dim].float().chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        heads[..., :rotary_dim] = turned.to(heads.dtype)


def rotary_write_kv(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """`rotary_embedding`, then `write_kv`, in one call.

    Args: as for the two functions. query and key are changed in place; a token with a negative slot is turned too.
    """
    rotary_embedding(positions, query, key, cos_sin)
    write_kv(key, value, key_cache, value_cache, slot_mapping)
