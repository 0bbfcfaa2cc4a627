"""Writing keys and values into the paged cache."""

from torch import Tensor


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Put each token's key and value into its slot, in place.

    Args:
        key, value: (T, Hkv, D); rows may be strided, a row's (Hkv, D) contiguous.
        key_cache, value_cache: (N, Hkv, block_size, D), the dtype of key; contiguous but for the first dimension.
        slot_mapping: (T,) int64: block * block_size + offset. A negative slot means that the token is skipped.
            No slot may occur twice.

    Source: vLLM's slot mapping (Kwon et al. 2023).
    """
    block_size = key_cache.shape[2]
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block, offset = slots // block_size, slots % block_size
    key_cache[block, :, offset] = key[: slot_mapping.shape[0]][kept]
    value_cache[block, :, offset] = value[: slot_mapping.shape[0]][kept]
