"""R111: users build harnesses of their own to inject requests made of lengths and to print the scheduler."""

from __future__ import annotations

import json

import pytest

from nbengine.errors import TraceError
from nbengine.observe.dump import loads
from tests.observe.engines import make_llm


def test_requests_from_lengths_and_a_shared_prefix_without_a_tokenizer() -> None:
    dbg = make_llm(num_blocks=30, skip_tokenizer_init=True).debug()
    ids = dbg.add_group([12, 14, 9], shared=8, max_tokens=4, temperature=0)
    view = dbg.view
    prompts = [view.requests[name].prompt_token_ids for name in ids]
    assert [len(prompt) for prompt in prompts] == [12, 14, 9]
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 1 and len({tuple(prompt[:9]) for prompt in prompts}) == 3
    dbg.step()
    assert [view.requests[name].num_cached_tokens for name in ids] == [0, 8, 8]


def test_described_in_a_line_a_request_and_dumped_so_that_it_loads_again() -> None:
    dbg = make_llm(num_blocks=12, max_model_len=40).debug()
    dbg.add_group([9, 9, 9, 9], shared=8, max_tokens=16, temperature=0)
    dbg.run("preempted")
    text = dbg.describe()
    assert all(sum(line.startswith(f"{name}:") for line in text.splitlines()) == 1 for name in ("r1", "r2", "r3", "r4"))
    dump = dbg.dump()
    assert json.loads(dump)["keyframe"]["step"] == dbg.view.step
    assert loads(dump).canonical() == dbg.view.canonical()
    with pytest.raises(TraceError, match="no nbengine dump"):
        loads("{}")
