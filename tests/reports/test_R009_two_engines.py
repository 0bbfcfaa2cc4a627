"""R009: engines in one process share nothing: not ids, counters, metrics nor random numbers; making a second one beside a
live first one, with another block size, works, and so does making the same one again."""

from __future__ import annotations

from nbengine import LLM, SamplingParams
from nbengine.engine.stats import Counter
from tests.scripted import scripted_llm


def generated(llm: LLM) -> int:
    return next(m.value for m in llm.get_metrics() if isinstance(m, Counter) and m.name == "vllm:generation_tokens")


def test_two_live_engines_stepped_in_turn() -> None:
    one = scripted_llm({"a": "first engine"}, block_size=4)
    other = scripted_llm({"a": "second"}, block_size=8)
    for llm in (one, other):
        llm.llm_engine.add_request("a", "x", SamplingParams(temperature=0, max_tokens=16))
    while one.llm_engine.has_unfinished_requests() or other.llm_engine.has_unfinished_requests():
        one.llm_engine.advance()
        other.llm_engine.advance()
    texts = [llm.wait_for_completion(use_tqdm=False)[0].outputs[0].text for llm in (one, other)]
    assert texts == ["first engine", "second"]
    assert (generated(one), generated(other)) == (13, 7)


def test_ids_and_random_numbers_are_each_engine_s_own() -> None:
    params = SamplingParams(max_tokens=8)  # sampled, no seed: the engine draws one
    alone = scripted_llm().generate(["x", "y"], params, use_tqdm=False)
    one, other = scripted_llm(), scripted_llm()
    mixed = [(a, b) for p in ("x", "y") for a, b in [(llm_out(one, p, params), llm_out(other, p, params))]]
    assert [a for a, _ in mixed] == [b for _, b in mixed] == [(o.request_id, o.outputs[0].text) for o in alone]


def llm_out(llm: LLM, prompt: str, params: SamplingParams) -> tuple[str, str]:
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return output.request_id, output.outputs[0].text


def test_running_the_cell_again() -> None:
    for _ in range(3):
        llm = scripted_llm({"0": "ok"})
        assert llm.generate("x", use_tqdm=False)[0].outputs[0].text == "ok"
