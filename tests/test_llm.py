"""LLM: the offline calls, and what is left after an interrupt, an error, or the end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from nbengine import LLM, SamplingParams
from nbengine.errors import (
    ConfigError,
    DuplicateRequestError,
    InvalidParameterError,
    InvalidRequestError,
    NBEngineError,
    StalledError,
    StepError,
)
from nbengine.models.catalog import pull
from nbengine.outputs import RequestOutput
from tests.scripted import scripted_llm

PARAMS = SamplingParams(temperature=0, max_tokens=8)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def generate(llm: LLM, prompts: Any, params: Any = PARAMS, **options: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False, **options)


class TestGenerate:
    def test_outputs_come_in_the_order_of_the_prompts(self) -> None:
        llm = scripted_llm({"0": "longest", "1": "", "2": "mid"}, max_num_seqs=2)
        outputs = generate(llm, ["x", {"prompt": "y"}, [1, 2]])
        assert texts(outputs) == ["longest", "", "mid"]
        assert [output.request_id for output in outputs] == ["0", "1", "2"]
        assert [output.prompt for output in outputs] == ["x", "y", None]
        assert all(output.finished for output in outputs)

    @pytest.mark.parametrize("prompts", ["x", {"prompt": "x"}, [120], {"prompt_token_ids": [120]}, ["x"], [[120]]])
    def test_one_prompt_in_any_shape(self, prompts: Any) -> None:
        assert texts(generate(scripted_llm({"0": "ok"}), prompts)) == ["ok"]

    def test_no_prompts_no_outputs(self) -> None:
        assert generate(scripted_llm(), []) == []

    def test_params_for_each(self) -> None:
        llm = scripted_llm({"0": "abcdef", "1": "abcdef"})
        outputs = generate(llm, ["x", "y"], [PARAMS.clone(max_tokens=1), PARAMS.clone(max_tokens=3)])
        assert texts(outputs) == ["a", "abc"]
        with pytest.raises(InvalidParameterError, match="2 prompts, got 1"):
            generate(llm, ["x", "y"], [PARAMS])

    def test_priorities(self) -> None:
        llm = scripted_llm(scheduling_policy="priority", max_num_seqs=1)
        llm.enqueue(["x", "y", "z"], PARAMS, priority=[2, 0, 1])
        assert llm.waiting() == ["1", "2", "0"]
        llm.enqueue("w", PARAMS, priority=-1)
        assert llm.waiting()[0] == "3"

    def test_a_bad_prompt_among_good_ones_adds_none(self) -> None:
        llm = scripted_llm({"2": "ok"})
        with pytest.raises(InvalidRequestError, match="empty"):
            generate(llm, ["x", "", "y"])
        assert not llm.waiting() and not llm.partial_outputs()
        assert generate(llm, "x")[0].finished

    def test_a_refusal_by_the_core_adds_none_either(self) -> None:
        llm = scripted_llm()
        llm.llm_engine.add_request("1", "x", PARAMS)
        llm.llm_engine.new_request_id = iter("01").__next__  # type: ignore[method-assign]
        with pytest.raises(DuplicateRequestError):
            generate(llm, ["x", "y"])
        assert llm.waiting() == ["1"]

    def test_n_answers(self) -> None:
        (output,) = generate(scripted_llm({"0_0": "a", "1_0": "bb", "2_0": "c"}), "x", PARAMS.clone(n=3))
        assert [answer.text for answer in output.outputs] == ["a", "bb", "c"]

    def test_the_same_engine_seed_gives_the_same_answers(self) -> None:
        one, other, third = (texts(generate(scripted_llm(seed=s), ["x"] * 3, SamplingParams())) for s in (1, 1, 2))
        assert one == other != third
        assert len(set(one)) == 3

    def test_requests_added_by_hand_go_on_beside_and_are_not_lost(self) -> None:
        llm = scripted_llm({"mine": "hand", "0": "hello", "slow": "x" * 30})
        llm.llm_engine.add_request("mine", "x", PARAMS)
        llm.llm_engine.add_request("slow", "x", PARAMS.clone(max_tokens=30))
        assert texts(generate(llm, "y")) == ["hello"]
        assert llm.running() == ["slow"]
        assert texts(llm.wait_for_completion(use_tqdm=False)) == ["hand", "x" * 30]
        assert llm.wait_for_completion(use_tqdm=False) == []


class TestChat:
    def test_one_conversation_or_many(self) -> None:
        llm = scripted_llm({"0": "hi", "1": "a", "2": "b"})
        messages = [{"role": "user", "content": "hello"}]
        (output,) = llm.chat(messages, PARAMS, use_tqdm=False)
        assert (output.prompt, output.outputs[0].text) == ("[user] hello\n[assistant] ", "hi")
        assert texts(llm.chat([messages, messages], PARAMS, use_tqdm=False)) == ["a", "b"]

    def test_the_last_message_can_be_continued(self) -> None:
        llm = scripted_llm()
        messages = [{"role": "assistant", "content": "Well"}]
        with pytest.raises(InvalidParameterError, match="add_generation_prompt=False"):
            llm.chat(messages, PARAMS, continue_final_message=True)
        (output,) = llm.chat(messages, PARAMS, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
        assert output.prompt == "[assistant] Well\n"


class TestAfterAnError:
    def test_a_failed_step_leaves_all_to_go_on_with(self) -> None:
        failing = [True]

        def before_step(executor: Any, plan: Any) -> None:
            if plan.step == 2 and failing:
                failing.clear()
                raise RuntimeError("boom")

        llm = scripted_llm({"0": "hello", "1": "x"}, executor={"before_step": before_step})
        with pytest.raises(StepError, match=r"(?s)boom.*0: running"):
            generate(llm, ["a", "b"])
        assert texts(llm.partial_outputs()) == ["he"]
        assert texts(llm.wait_for_completion(use_tqdm=False)) == ["hello", "x"]

    def test_after_reset_it_works_as_new(self) -> None:
        def before_step(executor: Any, plan: Any) -> None:
            if "0" in plan.num_scheduled_tokens:
                raise RuntimeError("boom")

        llm = scripted_llm({"1": "fine"}, executor={"before_step": before_step})
        with pytest.raises(StepError):
            generate(llm, "a")
        assert llm.reset() == ["0"]
        assert texts(generate(llm, "b")) == ["fine"]

    def test_a_stall_is_an_error_with_reasons(self) -> None:
        llm = scripted_llm()
        llm.llm_engine.config.scheduler.max_num_seqs = 0
        with pytest.raises(StalledError, match="0: max_num_seqs"):
            generate(llm, "a")
        assert llm.abort_all() == ["0"]

    def test_a_paused_scheduler_is_no_endless_loop(self) -> None:
        llm: Any = scripted_llm()
        llm.llm_engine.engine_core.core.scheduler.pause_state = "all"
        with pytest.raises(StalledError, match="paused"):
            generate(llm, "a")

    def test_a_reset_from_within_is_told(self) -> None:
        llm: Any = None

        def before_step(executor: Any, plan: Any) -> None:
            if plan.step == 1:
                llm.llm_engine.output_processor.forget(["0"])
                llm.llm_engine.engine_core.abort_requests(["0"])

        llm = scripted_llm(executor={"before_step": before_step})
        with pytest.raises(NBEngineError, match="Requests 0 are not in the engine any more: while they ran, it was reset"):
            generate(llm, "a")


class TestMaking:
    def test_a_misspelt_option_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"max_num_seq'.*did you mean max_num_seqs"):
            LLM("x", max_num_seq=3)
        with pytest.raises(ConfigError, match="no option 'zzz'"):
            LLM("x", zzz=3)

    def test_it_says_what_it_is(self) -> None:
        assert repr(scripted_llm()) == "LLM('scripted': 31 KV blocks of 4 tokens, 0 running, 0 waiting)"

    def test_a_with_block_frees_it(self) -> None:
        with scripted_llm() as llm:
            executor = llm.llm_engine.engine_core.core.executor  # type: ignore[attr-defined]
        assert executor.is_shut_down

    def test_del_frees_it_at_once_without_the_garbage_collector(self) -> None:
        llm = scripted_llm({"0": "x"})
        generate(llm, "a")
        executor = weakref.ref(llm.llm_engine.engine_core.core.executor)  # type: ignore[attr-defined]
        gc.collect()
        gc.disable()
        try:
            del llm
            assert executor() is None
        finally:
            gc.enable()

    def test_importing_it_needs_neither_torch_nor_a_notebook(self) -> None:
        code = "import sys, nbengine.llm, nbengine.cli; print(*{'torch', 'IPython', 'ipywidgets', 'zmq'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == ""


SMALL: dict[str, Any] = {"max_model_len": 256, "kv_cache_memory_bytes": 2**27}


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LLM]:
    pull(progress=False)
    with LLM(**SMALL) as llm:
        yield llm


@pytest.mark.slow
class TestRealModel:
    def test_it_knows_where_paris_is(self, smollm2: LLM) -> None:
        prompts = ["The capital of France is", "The capital of Italy is"]
        france, italy = generate(smollm2, prompts)
        assert "Paris" in france.outputs[0].text and "Rome" in italy.outputs[0].text
        (answer,) = smollm2.chat([{"role": "user", "content": "What is the capital of France?"}], PARAMS, use_tqdm=False)
        assert answer.outputs[0].text == "The capital of France is Paris."
        assert answer.outputs[0].finish_reason == "stop"

    def test_a_seed_gives_the_same_alone_and_in_a_batch(self, smollm2: LLM) -> None:
        params = SamplingParams(seed=3, max_tokens=4, n=2)
        (alone,) = generate(smollm2, "Once upon a time", params)
        batched = generate(smollm2, ["Once upon a time", "In the beginning"], params)[0]
        assert [a.token_ids for a in alone.outputs] == [a.token_ids for a in batched.outputs]
        assert alone.outputs[0].token_ids != alone.outputs[1].token_ids

    def test_the_text_is_what_the_tokenizer_makes_of_the_tokens(self, smollm2: LLM) -> None:
        params = SamplingParams(seed=1, temperature=1.5, max_tokens=16)
        (output,) = generate(smollm2, "Some emoji: 🔥 👩‍👩‍👧 and 中文,", params)
        answer = output.outputs[0]
        assert answer.text == smollm2.get_tokenizer().backend_tokenizer.decode(answer.token_ids, skip_special_tokens=True)

    def test_a_real_interrupt_in_the_forward_pass_loses_nothing(self, smollm2: LLM) -> None:
        prompts, short = ["The sea", "A mountain"], PARAMS.clone(max_tokens=4)
        wanted = texts(generate(smollm2, prompts, short))
        timer = threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            while True:
                generate(smollm2, prompts, short)
        timer.join()
        left = smollm2.wait_for_completion(use_tqdm=False)
        assert texts(left) in (wanted, [])
        assert texts(generate(smollm2, prompts, short)) == wanted

    def test_memory_comes_back_over_five_re_creations(self) -> None:
        code = f"""
import psutil
from nbengine import LLM, SamplingParams
after = []
for turn in range(5):
    llm = LLM(**{SMALL})
    llm.generate("Hello", SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    if turn == 0: held = psutil.Process().memory_info().rss
    if turn % 2: llm.shutdown()
    del llm
    after.append(psutil.Process().memory_info().rss)
print(held, *after)
"""
        pull(progress=False)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        held, first, *later = (int(word) >> 20 for word in done.stdout.split())  # MiB
        assert first < held - 300, "the weights alone are 500 MiB"
        assert max(later) < first + 100, f"it grows: {first} {later}"
