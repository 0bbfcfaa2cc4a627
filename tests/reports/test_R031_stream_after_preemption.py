"""R031: the streamed text of a request that is preempted and computed again has no gap and no repeat, and its tokens are
those that it gets alone. (The scheduler's numbers of this report are tested beside the scheduler.)"""

from __future__ import annotations

from nbengine import LLM, SamplingParams
from nbengine.sampling_params import RequestOutputKind
from tests.scripted import scripted_llm


def small(**options: object) -> LLM:
    # block 0 is reserved: 4 usable blocks of 4 tokens
    return scripted_llm(block_size=4, num_gpu_blocks_override=5, max_model_len=16, enable_prefix_caching=False, **options)


def stream(llm: LLM, *request_ids: str) -> tuple[dict[str, list[str]], dict[str, int]]:
    params = SamplingParams(max_tokens=8, output_kind=RequestOutputKind.DELTA)
    for seed, request_id in enumerate(("a", "b")):
        if request_id in request_ids:
            llm.llm_engine.add_request(request_id, "xxxx", params.clone(seed=seed))
    texts: dict[str, list[str]] = {request_id: [] for request_id in request_ids}
    ended, step = {}, 0
    while llm.llm_engine.has_unfinished_requests():
        step += 1
        for output in llm.llm_engine.step():
            texts[output.request_id].append(output.outputs[0].text)
            if output.finished:
                ended[output.request_id] = step
    return texts, ended


def test_no_gap_no_repeat() -> None:
    llm = small()
    texts, ended = stream(llm, "a", "b")
    assert ended == {"a": 8, "b": 11}
    assert all(len(text) == 1 for deltas in texts.values() for text in deltas)
    for request_id in ("a", "b"):
        alone, _ = stream(small(), request_id)
        assert alone[request_id] == texts[request_id]
    preemptions = next(m for m in llm.get_metrics() if m.name == "vllm:num_preemptions")
    assert preemptions.value == 1  # type: ignore[attr-defined]
    scheduler = llm.llm_engine.engine_core.core.scheduler  # type: ignore[attr-defined]
    assert scheduler.kv.pool.num_free == 4
