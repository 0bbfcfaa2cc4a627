"""Names for full KV blocks: a block's hash covers its tokens and, through its parent, everything before them.

Two blocks with equal hashes hold the same keys and values, so one may stand in for the other: that is prefix caching.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Protocol

from nbengine.config import HashAlgo
from nbengine.envs import hash_seed
from nbengine.errors import ConfigError

ExtraKeys = tuple[Any, ...] | None
CustomHash = Callable[[bytes | None, list[int], ExtraKeys], bytes]

_ROOT = sha256(b"nbengine").digest()  # the parent of every first block
_TOKEN_BYTES = array("I").itemsize


class Hashable(Protocol):
    """What a hasher reads of a request."""

    token_ids: list[int]
    cache_salt: str | None
    lora_name: str | None


def extra_keys(request: Hashable, block_index: int) -> ExtraKeys:
    """What a block's content depends on beside its tokens: the adapter, and on the first block the salt."""
    keys = []
    if request.lora_name:
        keys.append(request.lora_name)
    if request.cache_salt and block_index == 0:
        keys.append(request.cache_salt)
    return tuple(keys) or None


class BlockHasher:
    """The default: SHA-256 over parent digest, tokens as 32-bit integers, then adapter and salt if there are any.

    The parts before those have a fixed length, and an adapter cannot pass for a salt (in vLLM's flat list of extra keys
    the two look alike), so no two contents share an input.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def extend(self, request: Hashable, hashes: list[bytes], num_blocks: int) -> None:
        """Append to `hashes`, the request's so far, until `num_blocks` are there. Costs about 0.7 us a block."""
        start, size = len(hashes), self.block_size
        data = array("I", request.token_ids[start * size : num_blocks * size]).tobytes()
        parent = hashes[-1] if start else _ROOT
        later = repr((request.lora_name,)).encode() if request.lora_name else b""
        suffix = later
        if start == 0 and request.cache_salt:
            suffix = repr((request.lora_name, request.cache_salt)).encode()
        width = size * _TOKEN_BYTES
        for at in range(0, len(data), width):
            parent = sha256(parent + data[at : at + width] + suffix).digest()
            hashes.append(parent)
            suffix = later


class CborHasher(BlockHasher):
    """vLLM's `sha256_cbor`: SHA-256 of the canonical CBOR of [parent, [token ids], extra keys or null].

    seed: two engines name blocks alike only with the same one; None draws a random root.
    """

    def __init__(self, block_size: int, seed: str | None) -> None:
        super().__init__(block_size)
        self.root = os.urandom(32) if seed is None else sha256(canonical_cbor(seed)).digest()

    def extend(self, request: Hashable, hashes: list[bytes], num_blocks: int) -> None:
        size = self.block_size
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else self.root
            tokens = request.token_ids[index * size : (index + 1) * size]
            hashes.append(sha256(canonical_cbor([parent, tokens, extra_keys(request, index)])).digest())


class CustomHasher(BlockHasher):
    """A caller's own function, called as hash(parent or None, token ids, extra keys or None)."""

    def __init__(self, block_size: int, function: CustomHash) -> None:
        super().__init__(block_size)
        self.function = function

    def extend(self, request: Hashable, hashes: list[bytes], num_blocks: int) -> None:
        size = self.block_size
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else None
            tokens = request.token_ids[index * size : (index + 1) * size]
            hashes.append(self.function(parent, tokens, extra_keys(request, index)))


def make_hasher(algo: HashAlgo, block_size: int) -> BlockHasher:
    """The hasher that `prefix_caching_hash_algo` names. Raises ConfigError for an unknown name."""
    if callable(algo):
        return CustomHasher(block_size, algo)
    if algo == "sha256":
        return BlockHasher(block_size)
    if algo == "sha256_cbor":
        return CborHasher(block_size, hash_seed())
    raise ConfigError(f'prefix_caching_hash_algo must be "sha256", "sha256_cbor" or a function, got {algo!r}.')


def canonical_cbor(value: int | str | bytes | Sequence[Any] | None) -> bytes:
    """RFC 8949, deterministic encoding, for the few types that a block is named by. Integers: 0 to 2**64 - 1."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _cbor_head(0, value)
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _cbor_head(3, len(text)) + text
    return _cbor_head(4, len(value)) + b"".join(map(canonical_cbor, value))


def _cbor_head(major: int, argument: int) -> bytes:
    """Major type in the top three bits, then the argument in the fewest bytes that hold it."""
    if argument < 24:
        return bytes([major << 5 | argument])
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << (8 * width):
            return bytes([major << 5 | code]) + argument.to_bytes(width, "big")
    raise ValueError(f"{argument} does not fit 64 bits.")
