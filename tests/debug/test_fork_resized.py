"""Forks with another number of KV blocks: content moves along, and tokens stay what they would have been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nbengine import LLM, SamplingParams
from nbengine.debug.debugger import Debugger
from nbengine.errors import ConfigError
from nbengine.kv_cache.block_pool import BlockPool
from tests.models.fixtures import one_thread, tiny_model
from tests.observe.engines import Mess, make_llm

__all__ = ["one_thread", "tiny_model"]

PROMPTS = [[3 + i % 50 for i in range(9)] + [60 + request] for request in range(5)]
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)


def pool_of(dbg: Debugger) -> BlockPool:
    pool: BlockPool = dbg.core.scheduler.kv.pool
    return pool


@pytest.mark.parametrize("num_blocks", [13, 16, 20, 60])
def test_the_model_says_the_same_in_a_pool_of_any_size(num_blocks: int, tiny_model: Callable[[str], Path]) -> None:
    options = {"block_size": 4, "max_model_len": 48, "max_num_seqs": 3, "enable_prefix_caching": True}
    llm = LLM(str(tiny_model("llama")), num_gpu_blocks_override=26, skip_tokenizer_init=True, **options)
    wanted = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    dbg = llm.debug()
    for prompt in PROMPTS:
        dbg.add(prompt, temperature=0, max_tokens=14, ignore_eos=True)
    dbg.step(2)
    dbg.preempt("r3")  # so that fewer blocks are held than are filled
    fork = dbg.fork(num_gpu_blocks_override=num_blocks, max_num_seqs=5)
    assert fork.view.header.num_blocks == num_blocks and dbg.view.header.num_blocks == 26
    for engine in (fork, dbg):
        engine.run()
        engine.core.check_invariants()
        made = [list(engine.output(f"r{1 + i}").outputs[0].token_ids) for i in range(5)]
        assert made == wanted


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("more", [-9, -3, 0, 1, 20])
def test_any_state_goes_over_whole(more: int, seed: int) -> None:
    """The executor holds each slot that is read against the token that belongs there."""
    dbg = make_llm(num_blocks=26, max_num_batched_tokens=24).debug()
    mess = Mess(dbg.core, seed)
    for _ in range(40):
        mess.inputs()
        dbg.step()
    held = 25 - pool_of(dbg).num_free
    longest = max((request.max_total for request in dbg.core.scheduler.requests.values()), default=0)
    wanted = 26 + more
    before = dbg.view.canonical()
    if held > wanted - 1 or longest > 4 * (wanted - 1):
        with pytest.raises(ConfigError, match=r"KV blocks are held|may grow to"):
            dbg.fork(num_gpu_blocks_override=wanted)
        assert dbg.view.canonical() == before
        return
    fork = dbg.fork(num_gpu_blocks_override=wanted)
    fork.core.check_invariants()
    pool = pool_of(fork)
    assert pool.num_blocks == wanted and 25 - pool_of(dbg).num_free == wanted - 1 - pool.num_free
    if more >= 0:  # what was cached is still found
        assert set(pool.index) == set(pool_of(dbg).index)
    for engine in (fork, dbg):
        engine.add([7, 7, 7], "late", max_tokens=5)
        engine.run()
        engine.core.check_invariants()


def test_the_pool_shrinks_from_the_end_that_is_evicted_first_and_grows_before_what_is_cached() -> None:
    dbg = make_llm(num_blocks=12, max_model_len=16).debug()
    dbg.add("abcdefgh", max_tokens=1)
    dbg.add("ijklmnop", max_tokens=1)
    dbg.run()
    pool = pool_of(dbg)
    cached = [block for block in pool.free if pool.hashes[block] is not None]
    grown, shrunk = (pool_of(dbg.fork(num_gpu_blocks_override=number)) for number in (15, 5))
    assert list(grown.free) == [*(block for block in pool.free if block not in cached), 12, 13, 14, *cached]
    assert list(shrunk.free) == cached[-4:] and set(shrunk.index) <= set(pool.index) and len(shrunk.index) == 4


def test_what_cannot_be_is_said() -> None:
    dbg = make_llm(num_blocks=20).debug()
    dbg.add("a" * 30, max_tokens=10)
    dbg.step(2)
    with pytest.raises(ConfigError, match="8 KV blocks are held, and 5 are wanted"):
        dbg.fork(num_gpu_blocks_override=6)
    with pytest.raises(ConfigError, match="r1 may grow to 40 tokens, which are 10 KV blocks, and 9 are wanted"):
        dbg.fork(num_gpu_blocks_override=10)
    with pytest.raises(ConfigError, match="hold 4 tokens each, so block_size cannot change"):
        dbg.fork(block_size=8)
    with pytest.raises(ConfigError, match="at least 2"):
        dbg.fork(num_gpu_blocks_override=1)
