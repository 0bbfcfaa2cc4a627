"""How many KV blocks there are: from an option, or from the memory that is left after a real forward pass."""

from __future__ import annotations

import warnings

from nbengine.config import EngineConfig
from nbengine.errors import ConfigError
from nbengine.executor.base import Executor


def initialize_kv_caches(config: EngineConfig, executor: Executor) -> None:
    """Decide the number of blocks, allocate them, and write it to `config.cache.num_blocks`.

    A pool too small for one sequence of max_model_len shrinks max_model_len, with a warning: otherwise such a sequence
    would wait for ever. Raises ConfigError if not even one block fits.
    """
    num_blocks = _number_of_blocks(config, executor)
    block_size = config.cache.block_size
    capacity = (num_blocks - 1) * block_size  # block 0 is reserved
    max_model_len = config.scheduler.max_model_len
    if capacity < max_model_len:
        warnings.warn(
            f"max_model_len is now {capacity} tokens, not {max_model_len}: the KV cache has {num_blocks - 1} usable blocks "
            f"of {block_size} tokens, and one sequence must fit. Give more memory (kv_cache_memory_bytes, "
            "num_gpu_blocks_override) or set max_model_len yourself.",
            stacklevel=4,
        )
        config.scheduler.max_model_len = config.model.max_model_len = capacity
    executor.initialize_kv_cache(num_blocks)
    config.cache.num_blocks = num_blocks


def _number_of_blocks(config: EngineConfig, executor: Executor) -> int:
    cache, scheduler = config.cache, config.scheduler
    if cache.num_gpu_blocks_override is not None:
        return cache.num_gpu_blocks_override
    memory = cache.kv_cache_memory_bytes
    if memory is None:
        memory = executor.available_kv_memory()
    num_blocks = memory // executor.kv_bytes_per_block
    if num_blocks < 2:
        raise ConfigError(
            f"The KV cache needs at least 2 blocks of {executor.kv_bytes_per_block:,} bytes, but {memory:,} are there: "
            "raise kv_cache_memory_bytes or gpu_memory_utilization, or lower block_size."
        )
    if cache.kv_cache_memory_bytes is not None:
        return num_blocks
    # More than every seat at full length could never be used, save for keeping prefixes: twice that is plenty.
    most_useful = 2 * scheduler.max_num_seqs * -(-scheduler.max_model_len // cache.block_size) + 1
    return min(num_blocks, most_useful)
