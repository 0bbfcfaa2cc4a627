"""The fold agrees with the engine, after every phase of long random runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nbengine.kv_cache.ops import BlockOp, Op
from nbengine.observe.reading import keyframe_of
from nbengine.observe.recorder import Recorder
from nbengine.observe.records import Added, Header, Keyframe, decoder, encoder
from nbengine.observe.view import EngineView
from tests.observe.engines import Mess, make_core, make_llm, request

PHASES = ("schedule", "execute", "update")


def truth(core: Any, view: EngineView) -> dict[str, Any]:
    """What the engine itself says, in the view's canonical form. The engine forgets ended requests; those the view keeps."""
    real = EngineView.from_keyframe(view.header, keyframe_of(core, 0.0, view)).canonical()
    told = view.canonical()
    alive = real["requests"]
    for request_id, facts in told["requests"].items():
        if request_id not in alive:
            assert facts["status"] == "finished" and facts["finish_reason"] and facts["block_ids"] == []
            real["requests"][request_id] = facts
    real["finished"] = told["finished"]
    for place, owners in enumerate(real["owners"]):  # the engine knows who holds a block, not who came first
        if sorted(owners) == sorted(told["owners"][place]):
            real["owners"][place] = told["owners"][place]
    return real


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_after_every_phase_the_view_is_the_engine(seed: int, policy: str) -> None:
    core = make_core(num_blocks=18, scheduling_policy=policy, max_num_batched_tokens=16 + 8 * seed)
    recorder = Recorder(core)
    recorder.attach()
    mess = Mess(core, seed)
    seen: set[str] = set()
    for _ in range(400):
        for phase in PHASES:
            mess.inputs()
            getattr(core, phase)()
            assert core.observer is recorder
            assert recorder.view.canonical() == truth(core, recorder.view)
            seen |= {event.name for event in recorder.view.events}
    assert seen >= {
        "preempted",
        "prefix_hit",
        "prefix_miss",
        "evicted",
        "finished",
        "chunked",
        "resumed",
        "aborted",
        "changed",
    }


def test_what_is_kept_folds_to_the_same_view() -> None:
    core = make_core(num_blocks=18)
    recorder = Recorder(core)
    recorder.attach()
    mess = Mess(core, 3)
    for _ in range(200):
        mess.inputs()
        core.step()
    assert EngineView.fold(recorder.records()).canonical() == recorder.view.canonical()
    copy = EngineView.from_keyframe(recorder.view.header, decoder.decode(encoder.encode(recorder.view.keyframe())))
    assert copy.canonical() == recorder.view.canonical()


def test_a_past_moment_can_be_looked_at() -> None:
    core = make_core(num_blocks=18)
    recorder = Recorder(core)
    recorder.attach()
    mess = Mess(core, 4)
    moments = {}
    for _ in range(150):
        mess.inputs()
        for phase in PHASES:
            moments[core.step_count, phase] = recorder.view.canonical()
            getattr(core, phase)()
    for (step, phase), then in moments.items():
        if step % 7 == 0:
            assert recorder.view_at(step, phase).canonical() == then
    with pytest.raises(LookupError, match="Step 999"):
        recorder.view_at(999)


def test_attaching_in_the_middle_begins_with_a_keyframe() -> None:
    core = make_core()
    core.add_request(request("a", list(range(10))))
    core.step()
    core.schedule()
    recorder = Recorder(core)
    recorder.attach()
    assert isinstance(recorder.records()[1], Keyframe)
    core.execute()
    core.update()
    assert recorder.view.canonical() == truth(core, recorder.view)


def test_a_reset_is_told() -> None:
    core = make_core()
    recorder = Recorder(core)
    recorder.attach()
    core.add_request(request("a", list(range(10))))
    core.step()
    core.schedule()
    core.reset()
    core.add_request(request("b", list(range(10))))
    core.step()
    view = recorder.view
    assert view.requests["a"].finish_reason == "abort" and view.running == ["b"]
    assert view.canonical() == truth(core, view)
    assert EngineView.fold(recorder.records()).canonical() == view.canonical()


def test_blocks_and_requests_say_what_they_are() -> None:
    core = make_core()
    recorder = Recorder(core)
    recorder.attach()
    core.add_request(request("a", [1, 2, 3, 4, 5, 6]))
    core.add_request(request("b", [1, 2, 3, 4, 9, 9]))
    core.step()
    view = recorder.view
    assert view.blocks[0].state == "null"
    first = view.requests["a"].block_ids[0]
    assert (
        view.blocks[first].owners == ["a", "b"]
        and view.blocks[first].ref_count == 2
        and view.blocks[first].state == "shared"
    )
    assert view.blocks[first].hash is not None and view.blocks[first].token_ids == [1, 2, 3, 4]
    assert view.blocks[-1].state == "free" and len(view.blocks) == 20
    assert view.requests["a"].num_tokens == 7 and view.requests["a"].output_token_ids
    assert view.free_blocks == len(view.free_queue) == 19 - view.used_blocks
    assert "running" in str(view) and "a" in str(view.requests["a"])
    for thing in (view, view.requests["a"], recorder.steps[0], recorder.steps):
        bundle = thing._repr_mimebundle_()
        assert bundle["text/plain"] and bundle["text/html"].startswith("<table")


def test_a_copy_holds_still() -> None:
    core = make_core()
    recorder = Recorder(core)
    recorder.attach()
    core.add_request(request("a", [1, 2, 3]))
    before = recorder.view.copy()
    core.step()
    assert before.waiting == ["a"] and recorder.view.running == ["a"]


def test_a_stream_starts_with_a_header() -> None:
    added = Added(step=0, at=0.0, request_id="a", prompt_token_ids=[1], max_tokens=1)
    with pytest.raises(ValueError, match="starts with a Header, got Added"):
        EngineView.fold([added])


def test_the_comparison_would_notice_a_wrong_fold() -> None:
    """The test above compares everything that matters: a fold that forgets one operation fails it."""
    core = make_core()
    recorder = Recorder(core)
    recorder.attach()
    core.add_request(request("a", [1, 2, 3]))
    core.step()
    view = recorder.view.copy()
    view._ops([BlockOp(Op.UNCACHE, 5)])
    assert view.canonical() == truth(core, view)
    view._ops([BlockOp(Op.HIT, 5, "a")])
    assert view.canonical() != truth(core, view)


def test_unknown_fields_are_skipped_and_the_rest_is_read() -> None:
    header = Header(
        model="m", num_blocks=4, block_size=4, max_num_seqs=1, token_budget=4, max_model_len=16, policy="fcfs",
        enable_prefix_caching=True, enable_chunked_prefill=True, created="",
    )  # fmt: skip
    import msgspec

    later = msgspec.to_builtins(header) | {"colour": "green"}
    assert decoder.decode(msgspec.msgpack.encode(later)) == header


def test_standing_still_is_no_latency() -> None:
    """TTFT and ITL are the work between a request and its tokens, however long a person looks; rewinding takes it back."""
    llm = make_llm()
    dbg = llm.debug()
    request_id = dbg.add("hello", max_tokens=4)
    time.sleep(0.05)
    dbg.step()
    request = dbg.view.requests[request_id]
    assert request.time_to_first_token == pytest.approx(dbg.view.busy_s) and dbg.view.busy_s < 0.05
    time.sleep(0.05)
    dbg.step()
    assert request.inter_token_latency is not None and request.inter_token_latency < 0.05
    before = dbg.view.busy_s
    dbg.back()
    assert dbg.view.busy_s < before and dbg.view.requests[request_id].inter_token_latency is None
    attached = Recorder(dbg.core)
    dbg.detach()
    attached.attach()
    assert attached.view.requests[request_id].added_at < -0.05  # it came unseen: all the time since counts
