"""The Debugger by hand: phases, steps, runs, looking, changing, going back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nbengine import SamplingParams
from nbengine.debug.compare import comparable
from nbengine.debug.debugger import Debugger
from nbengine.debug.trace import Trace
from nbengine.errors import ConfigError, InvalidParameterError, InvalidRequestError, PhaseError, StepError
from nbengine.observe.breakpoints import Hit
from nbengine.observe.records import StepRecord
from nbengine.scheduler.request import Request
from nbengine.scheduler.scheduler import Scheduler
from tests.observe.engines import make_llm

PROMPTS = ("abcdefgh1", "abcdefgh2", "abcdefgh3", "abcdefgh4")


def crowded(**options: Any) -> Debugger:
    """Four requests that share a prefix, in a pool too small for them."""
    dbg = make_llm(num_blocks=12, max_model_len=40, **options).debug()
    for prompt in PROMPTS:
        dbg.add(prompt, max_tokens=16, temperature=0, ignore_eos=True)
    return dbg


def facts(dbg: Debugger) -> list[dict[str, Any]]:
    return [comparable(step) for step in dbg.records]


def test_one_phase_at_a_time() -> None:
    dbg = make_llm().debug()
    assert dbg.add("hello", max_tokens=3, temperature=0) == "r1"
    plan = dbg.schedule()
    assert plan.num_scheduled_tokens == {"r1": 5} and dbg.view.phase == "execute"
    assert "plan of step 0: 5 tokens for 1 request" in repr(plan)
    result = dbg.execute()
    assert result.request_ids == ["r1"] and len(result.sampled_token_ids[0]) == 1
    outputs = dbg.update()
    assert outputs.outputs[0].new_token_ids == result.sampled_token_ids[0]
    assert dbg.view.requests["r1"].output_token_ids == result.sampled_token_ids[0]
    for thing in (plan, result, outputs):
        assert thing._repr_mimebundle_()["text/html"].startswith("<table")


def test_out_of_order_says_which_phase_is_next_and_changes_nothing() -> None:
    dbg = make_llm().debug()
    dbg.add("hello", max_tokens=3)
    before = dbg.view.canonical()
    with pytest.raises(PhaseError, match="the next phase of step 0 is schedule"):
        dbg.execute()
    with pytest.raises(PhaseError, match="schedule"):
        dbg.update()
    assert dbg.view.canonical() == before
    dbg.schedule()
    with pytest.raises(PhaseError, match="the next phase of step 0 is execute"):
        dbg.schedule()


def test_step_finishes_the_step_under_way_and_returns_its_record() -> None:
    dbg = make_llm().debug()
    dbg.add("hello", max_tokens=8, temperature=0, ignore_eos=True)
    dbg.schedule()
    record = dbg.step()
    assert isinstance(record, StepRecord) and record.step == 0 and dbg.core.step_count == 1
    record = dbg.step(3)
    assert isinstance(record, StepRecord) and record.step == 3 and dbg.core.step_count == 4
    assert record.facts()["decode_tokens"] == 1


def test_run_to_a_predicate_an_event_a_step_the_end() -> None:
    dbg = crowded()
    assert dbg.run(until=2).step == 2
    stop = dbg.run(until=lambda view: view.free_blocks < 3)
    assert dbg.view.free_blocks < 3 and stop.why == "until(view) holds"
    stop = dbg.run("preempted")
    assert dbg.view.happened("preempted") and "preempted" in stop.why and stop.phase == "execute"
    assert dbg.run(max_steps=1).why == "1 step done"
    assert dbg.run().why == "nothing left to do"
    assert sorted(dbg.view.finished) == ["r1", "r2", "r3", "r4"]
    assert len(dbg.output("r1").outputs[0].token_ids) == 16
    with pytest.raises(ValueError, match="no event 'explosion'"):
        dbg.run("explosion")


def test_a_breakpoint_ends_a_run_and_a_step() -> None:
    dbg = crowded()
    dbg.break_on("preempted", once=True)
    stop = dbg.run()
    assert isinstance(stop, Hit) and stop.number == 1 and "preempted" in str(stop)
    marks = [i for step in dbg.records for i in step.inputs if getattr(i, "what", "") == "pause"]
    assert marks and marks[0].values["breakpoint"] == 1  # type: ignore[union-attr]
    dbg.break_on("finished", request="r1")
    assert "r1 finished" in str(dbg.step(100))
    assert dbg.state()[0] == "idle" and "r1 finished" in dbg.state()[1]


def test_only_one_moves_at_a_time() -> None:
    dbg = make_llm().debug()
    dbg.add("hello", max_tokens=3)
    with dbg.mover.exclusively(), pytest.raises(PhaseError, match="The engine is stepping"):
        dbg.step()
    dbg.break_when(lambda view: dbg.step())
    assert "PhaseError" in dbg.run().why


def test_pause_before_a_run_of_generate_would_wait_and_run_goes_on() -> None:
    dbg = crowded()
    dbg.pause("to think")
    assert dbg.state() == ("paused", "to think")
    assert dbg.run(max_steps=2).step == 2
    assert dbg.state()[0] == "idle"


def test_generate_is_recorded_too() -> None:
    llm = make_llm()
    plain = llm.generate(list(PROMPTS), SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    dbg = llm.debug()
    again = llm.generate(list(PROMPTS), SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    assert len(dbg.records) > 5 and [o.prompt for o in again] == [o.prompt for o in plain]
    assert all(request.prompt in PROMPTS for request in dbg.view.requests.values())
    dbg.detach()
    core = dbg.core
    assert core.observer is None and core.gate is None and core.scheduler.decisions is None
    assert core.scheduler.kv.pool.ops is None and core.executor.observed is False
    assert dbg.state()[0] == "closed"


def test_abort_and_bad_requests() -> None:
    dbg = crowded()
    dbg.step()
    dbg.abort("r2", "nobody")
    assert dbg.view.requests["r2"].finish_reason == "abort"
    assert dbg.abort_all() == ["r1", "r3", "r4"]
    assert dbg.view.running == [] == dbg.view.waiting
    with pytest.raises(InvalidParameterError, match=r"'max_token'\. Did you mean max_tokens"):
        dbg.add("x", max_token=3)
    with pytest.raises(InvalidRequestError):
        dbg.add("")
    with pytest.raises(LookupError, match="no output of 'r9'"):
        dbg.output("r9")


# -------------------------------------------------------------------------------------------------------------- by hand


def test_options_are_changed_and_told() -> None:
    dbg = crowded()
    dbg.set(max_num_batched_tokens=6, max_num_seqs=2)
    assert sum(dbg.schedule().num_scheduled_tokens.values()) <= 6
    assert dbg.view.options == {"max_num_batched_tokens": 6, "max_num_seqs": 2, "token_budget": 6}
    with pytest.raises(ConfigError, match="block_size cannot be changed"):
        dbg.set(block_size=8)
    with pytest.raises(ConfigError, match="less than max_num_seqs"):
        dbg.set(max_num_batched_tokens=1)
    assert dbg.core.config.scheduler.max_num_batched_tokens == 6


def test_priority_and_policy() -> None:
    dbg = make_llm(max_num_seqs=1).debug()
    for name in "abc":
        dbg.add("hello", name, max_tokens=2)
    dbg.set_priority("c", -1)
    assert dbg.view.waiting == ["a", "b", "c"] and dbg.view.requests["c"].priority == -1
    dbg.set(policy="priority")
    assert dbg.view.waiting == ["c", "a", "b"]
    assert list(dbg.schedule().num_scheduled_tokens) == ["c"]
    with pytest.raises(InvalidRequestError, match="no live request 'z'; alive: a, b, c"):
        dbg.set_priority("z", 1)


def test_preempt_by_hand() -> None:
    dbg = crowded()
    dbg.step(2)
    dbg.preempt("r2")
    assert dbg.view.waiting[0] == "r2" and dbg.view.requests["r2"].num_preemptions == 1
    assert "by hand" in dbg.explain("r2")
    dbg.run()
    assert len(dbg.output("r2").outputs[0].token_ids) == 16
    events = [moment.event for moment in dbg.history(request="r2")]
    assert events[0] == "queued" and events[-1] == "finished" and {"preempted", "resumed", "admitted"} <= set(events)


def test_edit_a_token_and_the_model_goes_on_from_it() -> None:
    dbg = make_llm().debug()
    dbg.add("hello", max_tokens=5, temperature=0, ignore_eos=True)
    with pytest.raises(PhaseError, match="between execute and update"):
        dbg.edit_token("r1", 65)
    dbg.schedule()
    dbg.execute()
    before = dbg.edit_token("r1", "Z")
    assert dbg.view.sampled == [[ord("Z")]] and before != ord("Z")
    with pytest.raises(InvalidRequestError, match="There is no token 999"):
        dbg.edit_token("r1", 999)
    with pytest.raises(InvalidRequestError, match="2 tokens"):
        dbg.edit_token("r1", "ab")
    dbg.update()
    assert dbg.output("r1").outputs[0].text == "Z"
    dbg.run()  # the executor checks that what it computes is what the scheduler says


def test_reset_prefix_cache() -> None:
    dbg = crowded()
    dbg.step(2)
    held = dbg.view.running
    assert dbg.reset_prefix_cache(preempt_running=True)
    assert dbg.view.running == [] and dbg.view.waiting[: len(held)] == held and not any(dbg.view.hashes)


# ------------------------------------------------------------------------------------------------------------------ back


def test_back_gives_the_same_again() -> None:
    dbg = crowded()
    dbg.run(until=9)
    first, text = facts(dbg), dbg.output("r1").outputs[0].text
    view = dbg.back(5)
    assert view is dbg.view and dbg.core.step_count == 4 == dbg.view.step and len(dbg.records) == 4
    assert len(dbg.output("r1").outputs[0].text) < len(text)
    dbg.run(until=9)
    assert facts(dbg) == first and dbg.output("r1").outputs[0].text == text
    dbg.goto(0)
    assert dbg.view.waiting == ["r1", "r2", "r3", "r4"]
    dbg.run(until=9)
    assert facts(dbg) == first


def test_back_over_a_finished_request_brings_it_to_life() -> None:
    dbg = crowded()
    dbg.run()
    end, first = dbg.core.step_count, facts(dbg)
    metrics = [repr(metric) for metric in dbg.engine.get_metrics() if "seconds" not in metric.name]
    dbg.back(20)
    assert dbg.engine.get_num_unfinished_requests() > 0
    dbg.run()
    assert dbg.core.step_count == end and facts(dbg) == first
    assert [repr(metric) for metric in dbg.engine.get_metrics() if "seconds" not in metric.name] == metrics
    assert len(dbg.output("r1").outputs[0].token_ids) == 16


def test_back_in_the_middle_of_a_step_undoes_what_was_made_of_it() -> None:
    dbg = crowded()
    dbg.step(2)
    before = dbg.view.canonical()
    dbg.schedule()
    dbg.execute()
    dbg.back()
    assert dbg.view.canonical() == before | {"requests": dbg.view.canonical()["requests"]}
    assert dbg.core.step_count == 2 and dbg.view.phase == "schedule"
    with pytest.raises(LookupError, match=r"back\(9\) asks for more than there is: 2 steps so far"):
        dbg.back(9)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        dbg.back(0)


def test_names_and_seeds_are_given_out_again() -> None:
    dbg = crowded()
    dbg.run(until=5)

    def go_on(engine: Debugger) -> tuple[str, int | None]:
        name = engine.add("late", max_tokens=3)  # not greedy: the engine draws a seed for it
        seed = engine.core.scheduler.requests[name].sampling_params.seed
        engine.run(until=8)
        return name, seed

    fork = dbg.fork()
    first = go_on(dbg)
    dbg.goto(4)  # the moment before step 5 was scheduled has it already
    dbg.step()
    assert go_on(dbg) == first == go_on(fork) and first[0] == "r5"


def test_options_are_undone_too() -> None:
    dbg = crowded()
    dbg.step(2)
    dbg.set(max_num_seqs=2)
    dbg.step()
    dbg.back(2)
    assert dbg.core.config.scheduler.max_num_seqs == 6 and dbg.view.options == {}


# ----------------------------------------------------------------------------------------------------- fork and compare


def test_a_fork_goes_its_own_way() -> None:
    dbg = crowded()
    dbg.run(until=3)
    before = dbg.view.canonical()
    alt = dbg.fork(max_num_seqs=2)
    assert alt.core.config.scheduler.max_num_seqs == 2 and dbg.core.config.scheduler.max_num_seqs == 6
    same = dbg.fork()
    alt.run()
    same.run()
    assert dbg.view.canonical() == before
    dbg.run()
    assert dbg.output("r1").outputs[0].text == alt.output("r1").outputs[0].text == same.output("r1").outputs[0].text
    assert dbg.output("r1").prompt == alt.output("r1").prompt == PROMPTS[0]
    assert dbg.compare(same).first_difference is None
    with pytest.raises(
        ConfigError, match="cannot change 'dtype'; it can: num_gpu_blocks_override, scheduler_cls, max_num_seqs"
    ):
        dbg.fork(dtype="float32")
    dbg.add("x", max_tokens=2)
    dbg.schedule()
    with pytest.raises(PhaseError, match="Fork between steps"):
        dbg.fork()


def test_compare_finds_the_first_difference() -> None:
    dbg = crowded()
    dbg.run(until=4)
    alt = dbg.fork(max_num_seqs=1, scheduling_policy="fcfs")
    dbg.add("another", "late", max_tokens=3, temperature=0)
    alt.add("another", "late", max_tokens=3, temperature=0)
    dbg.run()
    alt.run()
    comparison = dbg.compare(alt)
    assert comparison.first_difference is not None and comparison.first_difference.step >= 4
    assert comparison.first_step == 4 and comparison.here.finished == comparison.there.finished == 5
    assert comparison.here.output_tokens == comparison.there.output_tokens == 67 - 16
    bundle = comparison._repr_mimebundle_()
    assert bundle["text/html"].startswith("<img alt=") and "first difference: step" in bundle["text/plain"]


# ------------------------------------------------------------------------------------------------------------- in words


def test_the_story_of_a_preemption() -> None:
    dbg = crowded()
    dbg.run("preempted")
    (victim,) = dbg.view.scheduled.preempted  # type: ignore[union-attr]
    story = dbg.explain(victim)
    for words in ("needed 1 block and 0 were free", "last admitted", "gave back", "must compute"):
        assert words in story
    assert "was preempted in this step" in dbg.why_not(dbg.view.waiting[-1]) or victim == dbg.view.waiting[-1]
    dbg.run("finished")
    assert "reached its length limit" in dbg.explain(dbg.view.finished[0])


def test_the_story_names_a_rule_of_ones_own() -> None:
    class Gentle(Scheduler):
        def choose_victim(self) -> Request:
            return self.running[0]

    dbg = crowded(scheduler_cls=Gentle)
    dbg.run("preempted")
    (victim,) = dbg.view.scheduled.preempted  # type: ignore[union-attr]
    assert f"{victim} was chosen by Gentle.choose_victim; it gave back" in dbg.explain(victim)
    decision = next(d for d in dbg.view.decisions if d.request_id == victim)
    found = dbg._source.source_lines(decision.file, decision.line)
    assert found is not None and "def choose_victim" in found["lines"][decision.line - found["first_line"]]


def test_the_story_goes_by_the_policy_of_now() -> None:
    dbg = crowded()
    dbg.set(policy="priority")
    dbg.set_priority("r1", 9)
    dbg.run("preempted")
    assert "r1 was chosen as the least important of the running requests" in dbg.explain("r1")


def test_the_story_of_a_step_goes_by_the_policy_of_that_step() -> None:
    dbg = crowded()
    dbg.run("preempted")
    plan = dbg.view.scheduled
    assert plan is not None
    dbg.run(until=dbg.view.step + 1)
    dbg.set(policy="priority")
    assert "chosen as the last admitted" in dbg.why_not(plan.preempted[0], step=plan.step)
    assert "chosen as the last admitted" in dbg.explain(plan.preempted[0])


def test_why_not() -> None:
    dbg = make_llm(max_num_seqs=2).debug()
    for prompt in PROMPTS:
        dbg.add(prompt, max_tokens=5)
    assert "no step has looked at r4 yet" in dbg.explain("r4")
    dbg.step()
    assert dbg.why_not("r3") == "in step 0 r3 was not admitted: 2 requests run, and max_num_seqs is 2."
    assert "r1 runs" in dbg.explain("r1") and "r3 waits, place 1 of 2" in dbg.explain("r3")
    assert "it was not alive then" in dbg.why_not("nobody", step=0)
    with pytest.raises(LookupError, match="Step 77 is not recorded"):
        dbg.why_not("r3", step=77)
    with pytest.raises(LookupError, match="no request 'nobody'"):
        dbg.explain("nobody")


def test_the_history_of_a_block() -> None:
    dbg = crowded()
    dbg.run()
    events = [moment.event for moment in dbg.history(block=1)]
    assert events[0] == "given to" and events.count("hit by") >= 3 and "cached by" in events
    with pytest.raises(ValueError, match=r"request=… or block=…"):
        dbg.history()


# ------------------------------------------------------------------------------------------------------------- accidents


def test_a_failed_step_leaves_its_last_steps_in_a_file(tmp_path: Path) -> None:
    dbg = crowded()
    dbg._window.crash_dir = tmp_path
    dbg.step(3)
    dbg.core.executor.fail = True
    with pytest.raises(StepError) as caught:
        dbg.step()
    (file,) = tmp_path.glob("nbengine-crash-*-step3.nbtrace")
    assert str(file) in str(caught.value)
    trace = Trace.open(file)
    assert trace.steps[-1].failed is not None and "the model fell over" in trace.steps[-1].failed.error
    assert dbg.state()[0] == "failed"
    dbg.core.executor.fail = False
    dbg.run()
    assert len(dbg.view.finished) == 4


def test_wrong_books_stop_the_engine() -> None:
    dbg = crowded()
    dbg.step(2)
    dbg.core.scheduler.kv.pool.ref_counts[1] += 1
    stop = dbg.run()
    assert "the books do not add up" in stop.why and "lock 1" in stop.why
    assert any(step.updated and step.updated.violations for step in dbg.records)


def test_without_undo() -> None:
    dbg = Debugger(make_llm(), undo=False)
    dbg.add("x", max_tokens=2)
    dbg.step()
    with pytest.raises(PhaseError, match="keeps no undo log"):
        dbg.back()


def test_shown_without_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBENGINE_STATIC", "1")
    dbg = crowded()
    dbg.run(until=6)
    bundle = dbg._repr_mimebundle_()
    assert bundle["text/html"].startswith("<img alt=") and "<table" in bundle["text/html"]
    assert "step 6" in bundle["text/plain"] and "Debugger of plain" in repr(dbg)
    assert "r1" in dbg.describe()


def test_rows_for_a_data_frame() -> None:
    dbg = crowded()
    dbg.run()
    rows = dbg.records.rows()
    assert json.dumps(rows)
    assert sum(row["output_tokens"] for row in rows) == 4 * 16
    assert sum(row["finished"] for row in rows) == 4
