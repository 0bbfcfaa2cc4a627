"""R020: the bar counts prompts, not answers, and ends at exactly its total: with n > 1, with a request aborted from within
and one that ends at once; the rates shown are finite numbers."""

from __future__ import annotations

import re
from typing import Any

from nbengine import SamplingParams
from tests.scripted import scripted_llm


class Bar:
    def __init__(self, total: int, **options: Any) -> None:
        self.total, self.n, self.postfixes = total, 0, list[str]()
        bars.append(self)

    def update(self, n: int) -> None:
        self.n += n
        assert self.n <= self.total

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self.postfixes.append(text)

    def close(self) -> None:
        assert self.n == self.total


bars: list[Bar] = []


def test_four_prompts_three_answers_each() -> None:
    def before_step(executor: Any, plan: Any) -> None:
        if plan.step == 2:
            llm.abort("1")

    llm = scripted_llm(executor={"before_step": before_step})
    one = SamplingParams(n=3, max_tokens=6)
    outputs = llm.generate(["a", "b", "c", "d"], [one, one, one.clone(max_tokens=1), one], use_tqdm=Bar)
    assert [len(output.outputs) for output in outputs] == [3, 3, 3, 3]
    assert {answer.finish_reason for answer in outputs[1].outputs} == {"abort"}
    (bar,) = bars
    assert (bar.n, bar.total) == (4, 4)
    assert all(re.fullmatch(r"[\d,.]+ tok/s in, [\d,.]+ tok/s out", text) for text in bar.postfixes)


def test_everything_ends_in_one_step() -> None:
    bars.clear()
    scripted_llm().generate(["a", "b"], SamplingParams(max_tokens=1), use_tqdm=Bar)
    assert bars[0].n == 2
