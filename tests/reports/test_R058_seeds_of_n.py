"""R058: n answers to one seed differ from each other and are the same every time: answer i draws with seed + i, so that
each of them can be had alone with n=1 and that seed."""

from __future__ import annotations

from nbengine import SamplingParams
from tests.scripted import scripted_llm

PARAMS = SamplingParams(seed=7, n=4, temperature=1.0, max_tokens=12)


def answers(params: SamplingParams) -> list[str]:
    (output,) = scripted_llm().generate("x", params, use_tqdm=False)
    return [answer.text for answer in output.outputs]


def test_they_differ_and_are_the_same_again() -> None:
    first = answers(PARAMS)
    assert len(set(first)) == 4
    assert answers(PARAMS) == first


def test_answer_i_is_the_one_of_seed_plus_i() -> None:
    assert [answers(PARAMS.clone(n=1, seed=7 + i))[0] for i in range(4)] == answers(PARAMS)
