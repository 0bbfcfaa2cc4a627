"""A run written to a file while it goes on: whole after close, nearly so after a kill, and true after rewinds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nbengine.debug.compare import comparable
from nbengine.debug.debugger import Debugger
from nbengine.debug.recording import Recording
from nbengine.debug.trace import Trace, without_tensors, without_undone
from nbengine.errors import TraceError
from nbengine.observe.recorder import Recorder
from nbengine.observe.records import Added, AnyRecord, Changed, Header, Keyframe, Texts
from tests.observe.engines import make_core, make_llm


def crowded(**options: Any) -> Debugger:
    dbg = make_llm(num_blocks=14, max_model_len=48, max_num_batched_tokens=12, **options).debug()
    for i in range(6):
        dbg.add("abcdefgh" + str(i) * (3 + i), max_tokens=14, temperature=0, ignore_eos=True)
    return dbg


def told(records: list[AnyRecord]) -> list[AnyRecord]:
    """Without keyframes and texts, which a log has at other places."""
    return [record for record in records if not isinstance(record, Keyframe | Texts)]


def test_it_holds_the_run_from_its_beginning_to_its_close(tmp_path: Path) -> None:
    dbg = crowded()
    dbg.step(3)
    with Recording(dbg.recorder, tmp_path / "live.nbtrace") as recording:
        assert recording.is_open and "going on" in repr(recording)
        dbg.run()
    assert not recording.is_open and "closed" in repr(recording)
    recording.close()
    trace = Trace.open(recording.path, strict=True)
    assert isinstance(trace.records[2], Keyframe) and trace.records[2].step == 3
    assert trace.view.canonical() == dbg.view.canonical() and trace.view.texts == dbg.view.texts
    assert [comparable(step) for step in trace.steps] == [comparable(step) for step in dbg.records][3:]
    assert all(step.executed is None or step.executed.batch is None for step in trace.steps)
    before = recording.path.stat().st_size
    dbg.add("more")
    dbg.run()
    assert recording.path.stat().st_size == before, "a closed recording hears nothing"


def test_tensors_are_kept_if_they_are_asked_for(tmp_path: Path) -> None:
    dbg = crowded()
    with Recording(dbg.recorder, tmp_path / "live.nbtrace", tensors=True) as recording:
        dbg.run()
    assert Trace.open(recording.path).steps[0].executed.batch is not None


def test_what_came_is_on_the_disk_soon_and_at_once_if_asked_for(tmp_path: Path) -> None:
    dbg = crowded()
    with Recording(dbg.recorder, tmp_path / "live.nbtrace", every_s=0.05) as soon:
        dbg.step(4)
        until = time.monotonic() + 20
        while len(_open_live(soon.path).steps) < 4:
            assert time.monotonic() < until
            time.sleep(0.01)
    with Recording(dbg.recorder, tmp_path / "slow.nbtrace", every_s=3600) as slow:
        dbg.step(4)
        slow.flush()
        assert len(_open_live(slow.path).steps) == 4


def _open_live(path: Path) -> Trace:
    with pytest.warns(UserWarning, match=r"was not closed: .* still writes to it|cut off"):
        return Trace.open(path)


@pytest.mark.parametrize("seed", range(3))
def test_after_rewinds_it_tells_what_the_log_tells(tmp_path: Path, seed: int) -> None:
    dbg = crowded()
    with Recording(dbg.recorder, tmp_path / "live.nbtrace") as recording:
        for steps, back in [(9, 4), (2, 5), (seed + 3, 2), (6, 1)]:
            dbg.step(steps)
            dbg.back(back)
            dbg.set(max_num_seqs=2 + (steps + seed) % 3)
        dbg.schedule()
        dbg.back()
        dbg.run()
    trace = Trace.open(recording.path, strict=True)
    log = told([without_tensors(record) for record in dbg.trace.records])
    assert told(trace.records)[1:] == [record for record in log if not isinstance(record, Added | Header)]
    assert trace.view.canonical() == dbg.view.canonical() and trace.view.options == dbg.view.options
    for step in range(0, dbg.core.step_count, 3):
        assert trace.view_at(step).canonical() == dbg.view_at(step).canonical()
    assert trace.static_bundle()["text/html"] and trace.to_perfetto(tmp_path / "x.json")


def test_a_rewind_to_before_the_recording_began(tmp_path: Path) -> None:
    dbg = crowded()
    dbg.step(6)
    with Recording(dbg.recorder, tmp_path / "live.nbtrace") as recording:
        dbg.step(3)
        dbg.back(7)
        dbg.step(4)
    trace = Trace.open(recording.path, strict=True)
    assert [step.step for step in trace.steps] == [2, 3, 4, 5]
    assert trace.view.canonical() == dbg.view.canonical()
    assert trace.view_at(3).canonical() == dbg.view_at(3).canonical()


def test_a_full_disk_ends_the_recording_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dbg = crowded()
    recording = Recording(dbg.recorder, tmp_path / "live.nbtrace", every_s=0.01)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording._writer, "_block", full)
    dbg.step(2)
    recording.flush()
    dbg.run()
    assert len(dbg.view.finished) == 6 and "ends early" in caplog.text
    with pytest.raises(TraceError, match=r"is not whole: .*No space left"):
        recording.close()


def test_a_recorder_that_watches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="watches no engine"):
        Recording(Recorder(make_core()), tmp_path / "x.nbtrace")


_CHILD = """
import sys, time
from nbengine.debug.recording import Recording
from tests.observe.engines import make_llm
dbg = make_llm().debug()
dbg.add("abc", max_tokens=50, temperature=0, ignore_eos=True)
recording = Recording(dbg.recorder, sys.argv[1], every_s=0.1)
dbg.step(10)
time.sleep(1)
print("ten steps", flush=True)
dbg.step(5)
{end}
"""


def _child(path: Path, end: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(end=end), str(path)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )


def test_a_killed_process_loses_at_most_its_last_moment(tmp_path: Path) -> None:
    path = tmp_path / "live.nbtrace"
    with _child(path, "time.sleep(60)") as child:
        assert child.stdout is not None and child.stdout.readline() == "ten steps\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    trace = _open_live(path)
    assert len(trace.steps) >= 10 and trace.view.step >= 10


def test_a_process_that_ends_as_it_should_closes_its_recording(tmp_path: Path) -> None:
    path = tmp_path / "live.nbtrace"
    with _child(path, "") as child:
        child.communicate()
    assert len(Trace.open(path, strict=True).steps) == 15


# -------------------------------------------------------------------------------------------------------------- rewinds


def test_a_saved_trace_tells_of_the_rewinds_where_the_run_went_on(tmp_path: Path) -> None:
    dbg = crowded()
    dbg.step(4)
    dbg.back(2)
    dbg.set(max_num_seqs=2)
    dbg.step(3)
    trace = Trace.open(dbg.trace.save(tmp_path / "x.nbtrace"))
    changes = [record for record in trace.records if isinstance(record, Changed)]
    assert [change.what for change in changes] == ["rewind", "option"]
    assert changes[0].step == 2 and changes[0].values == {"from_step": 4, "to_step": 2}
    assert trace.view.canonical() == dbg.view.canonical()
    assert [step.step for step in trace.steps] == [0, 1, 2, 3, 4] and changes[0] in trace.steps[2].inputs
    assert [e["name"] for e in _instants(trace)] == ["rewind", "option"]


def _instants(trace: Trace) -> list[dict[str, Any]]:
    from nbengine.debug.perfetto import chrome_trace

    return [e for e in chrome_trace(trace.records)["traceEvents"] if e["ph"] == "i" and e["pid"] == 1]


def test_a_step_that_was_only_gone_back_to_is_none() -> None:
    dbg = crowded()
    dbg.step(4)
    dbg.back(2)
    assert [step.step for step in dbg.records] == [0, 1]
    assert dbg.view_at(2).canonical() == dbg.view.canonical()


def test_a_stream_with_the_undone_steps_in_it_becomes_the_log() -> None:
    dbg = crowded()
    heard: list[AnyRecord] = list(dbg.trace.records)
    dbg.recorder.subscribe(lambda record, _data: heard.append(record))
    dbg.step(5)
    dbg.add("one more")
    dbg.back(3)
    dbg.step(2)
    assert told(without_undone(heard)) == told(dbg.trace.records)
    assert len(heard) > len(dbg.trace.records) + 5


def test_a_debugger_records_until_it_is_detached(tmp_path: Path) -> None:
    dbg = make_llm().debug()
    dbg.add("hello", max_tokens=4)
    recording = dbg.record_to(tmp_path / "run.nbtrace")
    dbg.run()
    assert recording.is_open and "going on" in repr(recording)
    wanted = dbg.view.canonical()
    dbg.detach()
    assert not recording.is_open
    trace = Trace.open(tmp_path / "run.nbtrace", strict=True)
    assert trace.view.canonical() == wanted and trace.problem is None
