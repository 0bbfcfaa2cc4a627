"""The four workloads: prompts as token ids and output lengths, the same on every machine and for every engine.

W1  1 request, 32 tokens in, 128 out           W2  16 requests, 128 in, 64 out
W3  64 requests, 16 to 512 in, 16 to 128 out    W4  32 requests that share a 512-token prefix, 32 more in, 32 out
"""

from __future__ import annotations

import hashlib
import json
import random

FIRST_PLAIN_TOKEN, VOCABULARY = 17, 49152  # SmolLM2's special tokens are 0 … 16
NAMES = ("W1", "W2", "W3", "W4")
Workload = list[tuple[list[int], int]]


def get(name: str) -> Workload:
    """The requests of one workload as (prompt token ids, tokens to generate)."""
    rng = random.Random(f"peers-{name}-2026")

    def ids(n: int) -> list[int]:
        return [rng.randrange(FIRST_PLAIN_TOKEN, VOCABULARY) for _ in range(n)]

    if name == "W1":
        return [(ids(32), 128)]
    if name == "W2":
        return [(ids(128), 64) for _ in range(16)]
    if name == "W3":
        return [(ids(rng.randint(16, 512)), rng.randint(16, 128)) for _ in range(64)]
    if name == "W4":
        system = ids(512)
        return [(system + ids(32), 32) for _ in range(32)]
    raise KeyError(f"no workload {name!r}: one of {', '.join(NAMES)}")


def warmup() -> Workload:
    """A few requests of other tokens: warms kernels, shares no prefix with W1 … W4."""
    rng = random.Random("peers-warmup")
    return [([rng.randrange(FIRST_PLAIN_TOKEN, VOCABULARY) for _ in range(24 + 8 * i)], 6) for i in range(4)]


def checksum(tokens: object) -> str:
    """Twelve hex digits that two engines share exactly if they gave the same tokens."""
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:12]
