"""A block pool of another size under a scheduler that is at work: for a fork with more KV blocks, or fewer."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from nbengine.errors import ConfigError
from nbengine.kv_cache.block_pool import BlockPool

if TYPE_CHECKING:
    from nbengine.scheduler.scheduler import Scheduler


def resize(scheduler: Scheduler, num_blocks: int) -> dict[int, int]:
    """Go on with `num_blocks` blocks, null block included. Returns each kept block's number in the new pool.

    Held blocks are kept (`check_fits` says whether they can be), and of the free ones as many as fit, from the back of the
    queue: those would have been evicted last. A block keeps its number if the new pool has it. New blocks are taken before
    anything cached is evicted.
    """
    kv, old = scheduler.kv, scheduler.kv.pool
    held = [block for block, count in enumerate(old.ref_counts) if count]
    room = num_blocks - len(held)
    queue = list(old.free)[max(0, len(old.free) - room) :]
    kept = {*held, *queue}
    spare = iter([number for number in range(num_blocks) if number not in kept])
    moved = {block: block if block < num_blocks else next(spare) for block in [*held, *queue]}

    pool = BlockPool(num_blocks)
    for block, number in moved.items():
        pool.ref_counts[number], pool.hashes[number] = old.ref_counts[block], old.hashes[block]
    first_cached = next((place for place, block in enumerate(queue) if old.hashes[block] is not None), len(queue))
    numbers = [moved[block] for block in queue]
    pool.free = OrderedDict.fromkeys([*numbers[:first_cached], *spare, *numbers[first_cached:]])
    for name, first in old.index.items():
        same = [moved[block] for block in (first, *old.duplicates.get(name, ())) if block in moved]
        if same:
            pool.index[name] = same[0]
        if same[1:]:
            pool.duplicates[name] = OrderedDict.fromkeys(same[1:])
    kv.pool = pool
    kv.proofs = {moved[block]: proof for block, proof in kv.proofs.items() if block in moved}
    for request in scheduler.requests.values():
        request.block_ids = [moved[block] for block in request.block_ids]
    return moved


def check_fits(scheduler: Scheduler, num_blocks: int) -> None:
    """Raises ConfigError if what is held does not fit `num_blocks` blocks, or a live request could outgrow them."""
    pool, usable = scheduler.kv.pool, num_blocks - 1
    if (held := pool.num_usable - pool.num_free) > usable:
        raise ConfigError(
            f"{held} KV blocks are held, and {usable} are wanted (without block 0): preempt or abort requests first, or go "
            "back to a step with fewer."
        )
    for request in scheduler.requests.values():
        if (needs := scheduler.kv.blocks_for(request.max_total)) > usable:
            raise ConfigError(
                f"{request.request_id} may grow to {request.max_total} tokens, which are {needs} KV blocks, and {usable} "
                "are wanted (without block 0): it could never end. Abort it first, or take a larger pool."
            )
