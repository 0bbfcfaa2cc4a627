"""R060: no piece of a stop string is streamed before it turns out not to be one; then all of it is."""

from __future__ import annotations

import pytest

from nbengine import SamplingParams
from nbengine.outputs import CompletionOutput
from nbengine.sampling_params import RequestOutputKind
from tests.scripted import scripted_llm


def stream(pieces: list[str], kind: RequestOutputKind) -> list[CompletionOutput]:
    engine = scripted_llm({"a": pieces}).llm_engine
    engine.add_request("a", "x", SamplingParams(stop=["DEFGHIJ"], temperature=0, max_tokens=9, output_kind=kind))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += [output.outputs[0] for output in engine.step()]
    return outputs


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_a_whole_stop_string_never_shows(kind: RequestOutputKind) -> None:
    outputs = stream(["DEF", "G", "HI", "J"], kind)
    assert [output.text for output in outputs] == [""] * len(outputs)
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", "DEFGHIJ")
    assert sum(len(output.token_ids) for output in outputs) == (4 if kind != "cumulative" else 1 + 2 + 3 + 4)


def test_what_only_begins_like_one_is_shown_in_the_end() -> None:
    deltas = stream(["DEF", "X"], RequestOutputKind.DELTA)
    assert [output.text for output in deltas] == ["", "DEFX", ""]
    assert [output.text for output in stream(["DEF"], RequestOutputKind.DELTA)] == ["", "DEF"]  # flushed at the end
