"""R049: a sampled token is replaced across a block border; nobody may hit a block under the old text's name.

A block is named when the step after its last token is planned, from the tokens as they are then, and a token can be
edited only in the step that sampled it. So a name is never older than its block's tokens.
"""

from __future__ import annotations

import pytest

from nbengine import SamplingParams
from nbengine.engine.core_client import InprocClient
from nbengine.llm import LLM
from tests.scripted import scripted_llm

PROMPT, SAMPLED, EDITED = [10] * 15, 28, 11
BLOCK = 16


def cached_tokens(llm: LLM, prompt: list[int]) -> int | None:
    return llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)[0].num_cached_tokens


@pytest.mark.parametrize("edited", [True, False])
def test_a_block_is_found_under_its_own_text_alone(edited: bool) -> None:
    script = {"a": [SAMPLED, 13, 14, 15]}
    llm = scripted_llm(script, block_size=BLOCK, max_model_len=128)
    dbg = llm.debug()
    dbg.add(PROMPT, "a", max_tokens=4)
    dbg.schedule()
    dbg.execute()
    if edited:
        assert dbg.edit_token("a", EDITED) == SAMPLED
    dbg.update()
    dbg.run()
    kept, other = (EDITED, SAMPLED) if edited else (SAMPLED, EDITED)
    assert dbg.output("a").outputs[0].token_ids[0] == kept
    assert cached_tokens(llm, [*PROMPT, other, 13, 14]) == 0
    assert cached_tokens(llm, [*PROMPT, kept, 13, 14]) == BLOCK


def test_names_follow_the_tokens_through_edits_and_rewinds() -> None:
    llm = scripted_llm({"a": list(range(40))}, block_size=4)
    dbg = llm.debug()
    dbg.add([10] * 3, "a", max_tokens=30)
    client = llm.llm_engine.engine_core
    assert isinstance(client, InprocClient)
    scheduler = client.core.scheduler
    for step in range(12):
        dbg.schedule()
        dbg.execute()
        if step % 3 == 0:
            dbg.edit_token("a", 100 + step)
        dbg.update()
        if step == 7:
            dbg.back(4)
        request = scheduler.requests["a"]
        fresh: list[bytes] = []
        scheduler.kv.hasher.extend(request, fresh, len(request.block_hashes))
        assert request.block_hashes == fresh
