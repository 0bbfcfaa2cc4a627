"""R065: a stop string that is complete before min_tokens are there does not stop, and stays in the text."""

from __future__ import annotations

from nbengine import SamplingParams
from tests.scripted import scripted_llm


def test_it_stops_at_the_second_newline() -> None:
    llm = scripted_llm({"0": ["a", "\n", "b", "\n", "c"]})
    params = SamplingParams(stop=["\n"], min_tokens=3, temperature=0, max_tokens=9)
    answer = llm.generate("x", params, use_tqdm=False)[0].outputs[0]
    assert (answer.text, len(answer.token_ids), answer.stop_reason) == ("a\nb", 4, "\n")
