"""Tokens of the core become outputs: delta, cumulative, final; n answers gathered; ended, aborted, rewound."""

from __future__ import annotations

import pytest

from nbengine.engine.output_processor import OutputProcessor
from nbengine.engine.parallel_sampling import child_ids, fan_out
from nbengine.errors import DuplicateRequestError
from nbengine.outputs import RequestOutput
from nbengine.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason, SampledLogprobs
from nbengine.sampling_params import RequestOutputKind, SamplingParams
from tests.scripted import EOS, ByteTokenizer

DELTA, CUMULATIVE, FINAL = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY


def request(request_id: str = "a", prompt: str = "prompt", **params: object) -> EngineCoreRequest:
    made = SamplingParams(**params)  # type: ignore[arg-type]
    ids = list(prompt.encode())
    return EngineCoreRequest(request_id=request_id, prompt_token_ids=ids, sampling_params=made, arrival_time=1.0)


def new_processor(*requests: EngineCoreRequest) -> OutputProcessor:
    processor = OutputProcessor(ByteTokenizer())
    for each in requests:
        processor.add(each, None, child_ids(each))
    return processor


def feed(
    processor: OutputProcessor, tokens: dict[str, str | list[int]], at: float = 2.0, **ends: FinishReason
) -> tuple[list[RequestOutput], list[str]]:
    """A step's tokens by core id; `ends` gives core ids (an "_" before a digit) that the core finishes."""
    outputs = [
        EngineCoreOutput(
            request_id=core_id,
            new_token_ids=list(new.encode()) if isinstance(new, str) else new,
            finish_reason=ends.get(core_id) or ends.get("_" + core_id),
        )
        for core_id, new in tokens.items()
    ]
    return processor.process(EngineCoreOutputs(step=0, timestamp=at, outputs=outputs))


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [answer.text for output in outputs for answer in output.outputs]


class TestKinds:
    def test_delta_gives_what_is_new(self) -> None:
        processor = new_processor(request(output_kind=DELTA))
        assert [texts(feed(processor, {"a": c})[0]) for c in "abc"] == [["a"], ["b"], ["c"]]
        (last,), _ = feed(processor, {"a": "d"}, a=FinishReason.LENGTH)
        assert (last.outputs[0].text, last.outputs[0].token_ids, last.finished) == ("d", [100], True)

    def test_cumulative_gives_all_so_far(self) -> None:
        processor = new_processor(request(output_kind=CUMULATIVE))
        assert [texts(feed(processor, {"a": c})[0]) for c in "abc"] == [["a"], ["ab"], ["abc"]]

    def test_final_only_gives_one(self) -> None:
        processor = new_processor(request(output_kind=FINAL))
        assert feed(processor, {"a": "a"})[0] == []
        (last,), _ = feed(processor, {"a": "b"}, a=FinishReason.LENGTH)
        assert (last.outputs[0].text, last.outputs[0].finish_reason, last.finished) == ("ab", "length", True)

    def test_the_deltas_together_are_the_whole(self) -> None:
        processor = new_processor(request(output_kind=DELTA, stop=["XYZ"]))
        got = [texts(feed(processor, {"a": [byte]})[0]) for byte in "h🔥XYh".encode()]
        rest, _ = feed(processor, {"a": [0xF0]}, a=FinishReason.LENGTH)
        assert "".join(text for each in [*got, texts(rest)] for text in each) == "h🔥XYh\ufffd"

    def test_outputs_not_taken_are_joined(self) -> None:
        processor = new_processor(request(output_kind=DELTA, logprobs=0), request("b", output_kind=CUMULATIVE))
        for char in "abc":
            logprobs = [SampledLogprobs([ord(char)], [-0.5], 1)]
            outputs = [EngineCoreOutput(request_id=i, new_token_ids=[ord(char)], new_logprobs=logprobs) for i in "ab"]
            processor.process(EngineCoreOutputs(step=0, timestamp=2.0, outputs=outputs))
        delta, cumulative = processor.outbox.take()
        assert (delta.outputs[0].text, delta.outputs[0].token_ids) == ("abc", [97, 98, 99])
        assert delta.outputs[0].logprobs is not None and len(delta.outputs[0].logprobs) == 3
        assert cumulative.outputs[0].text == "abc"
        assert processor.outbox.take() == []


class TestEnds:
    def test_a_stop_string_is_found_here_and_aborted_there(self) -> None:
        processor = new_processor(request(stop=["b"]))
        assert feed(processor, {"a": "a"})[1] == []
        (last,), to_abort = feed(processor, {"a": "b"})
        assert to_abort == ["a"]
        assert (last.outputs[0].text, last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("a", "stop", "b")
        assert last.outputs[0].token_ids == [97, 98]
        assert feed(processor, {"a": "c"}) == ([], [])  # a token that was under way is dropped

    def test_a_stop_string_in_the_last_token_wins_over_length(self) -> None:
        processor = new_processor(request(stop=["b"]))
        (last,), to_abort = feed(processor, {"a": "b"}, a=FinishReason.LENGTH)
        assert (last.outputs[0].stop_reason, to_abort) == ("b", [])  # the core has ended it already

    def test_tokens_behind_a_stop_string_are_dropped(self) -> None:
        processor = new_processor(request(stop=["b"]))
        (last,), _ = feed(processor, {"a": "abc"})
        assert (last.outputs[0].text, last.outputs[0].token_ids) == ("a", [97, 98])

    @pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "ab")])
    def test_a_stop_token_is_shown_only_if_asked(self, include: bool, text: str) -> None:
        processor = new_processor(request(include_stop_str_in_output=include))
        (last,), _ = feed(processor, {"a": "ab"}, a=FinishReason.STOP)
        assert (last.outputs[0].text, last.outputs[0].token_ids) == (text, [97, 98])

    def test_eos_is_no_text(self) -> None:
        processor = new_processor(request(skip_special_tokens=False))
        (last,), _ = feed(processor, {"a": [97, EOS]}, a=FinishReason.STOP)
        assert last.outputs[0].text == "a"

    def test_an_abort_leaves_what_there_was(self) -> None:
        processor = new_processor(request(output_kind=FINAL), request("b"))
        feed(processor, {"a": [*b"ab", 0xF0]})
        to_abort, (last,) = processor.abort(["a", "nobody"])
        assert to_abort == ["a"]
        assert (last.outputs[0].text, last.outputs[0].finish_reason) == ("ab\ufffd", "abort")
        assert list(processor.requests) == ["b"]
        assert processor.abort(["a"]) == ([], [])

    def test_an_error_of_the_core_is_told(self) -> None:
        processor = new_processor(request())
        output = EngineCoreOutput(request_id="a", new_token_ids=[], finish_reason=FinishReason.ERROR, error="no grammar")
        (last,), _ = processor.process(EngineCoreOutputs(step=0, timestamp=0.0, outputs=[output]))
        assert (last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("error", "no grammar")


class TestMany:
    def test_ids_in_use_are_refused(self) -> None:
        processor = new_processor(request("a", n=2), request("1_b"))
        for twice in (request("a"), request("0_a"), request("b", n=2)):
            with pytest.raises(DuplicateRequestError):
                processor.add(twice, None, child_ids(twice))
        assert list(processor.requests) == ["a", "1_b"]

    def test_the_fan_out_keeps_the_last_request_object(self) -> None:
        parent = request("a", n=3, seed=7)
        children = list(fan_out(parent, child_ids(parent)))
        assert [child.request_id for child in children] == ["0_a", "1_a", "2_a"]
        assert [child.sampling_params.seed for child in children] == [7, 8, 9]
        assert all(child.sampling_params.n == 1 for child in children)
        assert children[2] is parent

    def test_final_only_waits_for_all(self) -> None:
        processor = new_processor(request(n=2, output_kind=FINAL))
        assert feed(processor, {"0_a": "x", "1_a": "y"}, _1_a=FinishReason.LENGTH)[0] == []
        (last,), _ = feed(processor, {"0_a": "z"}, _0_a=FinishReason.LENGTH)
        assert texts([last]) == ["xz", "y"]
        assert [answer.index for answer in last.outputs] == [0, 1]
        assert not processor.requests

    def test_deltas_of_one_step_come_in_one_output(self) -> None:
        processor = new_processor(request(n=2, output_kind=DELTA))
        (both,), _ = feed(processor, {"0_a": "x", "1_a": "y"}, _1_a=FinishReason.LENGTH)
        assert (texts([both]), both.finished) == (["x", "y"], False)
        (one,), _ = feed(processor, {"0_a": "z"}, _0_a=FinishReason.LENGTH)
        assert ([(answer.index, answer.text) for answer in one.outputs], one.finished) == ([(0, "z")], True)

    def test_one_answer_can_be_aborted_alone(self) -> None:
        processor = new_processor(request(n=2, output_kind=FINAL))
        assert processor.abort(["0_a"]) == (["0_a"], [])
        to_abort, (last,) = processor.abort(["a"])
        assert to_abort == ["1_a"]
        assert [answer.finish_reason for answer in last.outputs] == ["abort", "abort"]


class TestNumbers:
    def test_times(self) -> None:
        processor = new_processor(request())
        feed(processor, {"a": "a"}, at=3.0)
        (last,), _ = feed(processor, {"a": "b"}, at=3.5)
        assert last.metrics is not None
        assert (last.metrics.time_to_first_token, last.metrics.inter_token_latency) == (2.0, 0.5)

    def test_cached_tokens_come_with_the_first_output(self) -> None:
        processor = new_processor(request())
        first = EngineCoreOutput(request_id="a", new_token_ids=[97], num_cached_tokens=4)
        (output,), _ = processor.process(EngineCoreOutputs(step=0, timestamp=2.0, outputs=[first]))
        assert output.num_cached_tokens == 4
        assert feed(processor, {"a": "b"})[0][0].num_cached_tokens == 4

    def test_logprobs(self) -> None:
        processor = new_processor(request(logprobs=2))
        sampled = [SampledLogprobs([97, 98, 97], [-1.0, -0.5, -1.0], 2)]
        outputs = [EngineCoreOutput(request_id="a", new_token_ids=[97], new_logprobs=sampled)]
        (output,), _ = processor.process(EngineCoreOutputs(step=0, timestamp=2.0, outputs=outputs))
        (position,) = output.outputs[0].logprobs or []
        assert [(i, p.logprob, p.rank, p.decoded_token) for i, p in position.items()] == [
            (97, -1.0, 2, "a"),
            (98, -0.5, 1, "b"),
        ]
        assert output.outputs[0].cumulative_logprob == -1.0


class TestRewind:
    def test_a_request_goes_back_to_its_first_tokens(self) -> None:
        processor = new_processor(request(output_kind=DELTA))
        for char in "abcd":
            feed(processor, {"a": char})
        processor.rewind({"a": 2})
        assert texts(feed(processor, {"a": "X"})[0]) == ["X"]
        assert texts(processor.partial_outputs()) == ["abX"]

    def test_a_mark_brings_back_the_ended_and_drops_the_later(self) -> None:
        processor = new_processor(request("a", stop=["c"]), request("b"))
        feed(processor, {"a": "a", "b": "x"})
        mark = processor.mark()
        feed(processor, {"a": "bc", "b": "y"})
        processor.abort(["b"])
        processor.add(request("later"), None, ["later"])
        assert list(processor.requests) == ["later"]
        processor.restore(mark)
        assert list(processor.requests) == ["a", "b"]
        assert texts(processor.partial_outputs()) == ["a", "x"]
        (last,), to_abort = feed(processor, {"a": "bc"})
        assert (last.outputs[0].text, to_abort) == ("ab", ["a"])

    def test_a_mark_may_be_restored_again(self) -> None:
        processor = new_processor(request("a"))
        feed(processor, {"a": "a"})
        mark = processor.mark()
        for char in "xy":
            feed(processor, {"a": char})
            processor.restore(mark)
        assert texts(processor.partial_outputs()) == ["a"]

    def test_outputs_made_since_are_dropped_and_taken_ones_stay_taken(self) -> None:
        processor = new_processor(request("a"), request("b"))
        feed(processor, {"a": "a", "b": "x"})
        mark = processor.mark()
        feed(processor, {"a": "b", "b": "y"})
        processor.outbox.take(["b"])
        processor.restore(mark)
        assert texts(processor.outbox.take()) == ["a"]

    def test_half_a_character_survives(self) -> None:
        processor = new_processor(request())
        fire = list("🔥".encode())
        feed(processor, {"a": fire[:2]})
        mark = processor.mark()
        feed(processor, {"a": [65]})
        processor.restore(mark)
        assert texts(feed(processor, {"a": fire[2:]})[0]) == ["🔥"]
