"""A stream with gaps, as a file of a newer nbengine is: Python's fold and the browser's pass over what they do not know, and
agree. `python -m tests.debug.test_trace_gaps` writes the stream that both are held to anew."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nbengine.debug import plots
from nbengine.debug.history import request_history
from nbengine.debug.perfetto import chrome_trace
from nbengine.debug.trace import Trace
from nbengine.observe.records import Aborted, Added, AnyRecord, Header, Keyframe, Scheduled, Updated, decoder, encoder
from nbengine.observe.view import EngineView
from tests.observe.test_fixtures import a_mess

FIXTURE = Path(__file__).parents[2] / "widgets" / "tests" / "fixtures" / "gaps.json"


def mess() -> list[AnyRecord]:
    return [decoder.decode(data) for data in a_mess(5, "fcfs", steps=40, every=1000).records]


def with_gaps() -> list[AnyRecord]:
    """Some requests' adds, some plans and some updates are missing."""
    records = mess()

    def is_kept(record: AnyRecord) -> bool:
        if isinstance(record, Added):
            return int(re.sub(r"\D", "", record.request_id)) % 3 > 0
        if isinstance(record, Scheduled):
            return record.step % 5 > 0
        return not isinstance(record, Keyframe) and not (isinstance(record, Updated) and record.step % 7 == 3)

    return list(filter(is_kept, records))


def fixture_of(records: list[AnyRecord]) -> dict[str, Any]:
    header = records[0]
    assert isinstance(header, Header)
    view = EngineView(header)
    views = []
    for number, record in enumerate(records[1:], start=1):
        view.apply(record)
        if number % 15 == 0:
            views.append({"after": number, "view": view.canonical()})
    return {"records": [base64.b64encode(encoder.encode(record)).decode() for record in records], "views": views}


def test_both_folds_pass_over_the_same() -> None:
    """The browser's half is widgets/tests/fold.test.ts."""
    fixture = json.loads(FIXTURE.read_text())
    records = [decoder.decode(base64.b64decode(data)) for data in fixture["records"]]
    assert fixture_of(records)["views"] == fixture["views"] and len(fixture["views"]) > 5


def test_what_is_known_of_a_stream_with_gaps_can_be_looked_at() -> None:
    trace = Trace(with_gaps())
    known = {record.request_id for record in trace.records if isinstance(record, Added)}
    assert known <= set(trace.view.requests) | set(trace.view.finished)
    assert str(trace) and trace.view._repr_mimebundle_() and trace.view.events is not None
    assert len(chrome_trace(trace.records)["traceEvents"]) > 100
    assert plots.overview_png(trace.records)
    assert len(request_history(trace.records, "r0")) > 0


@pytest.mark.parametrize("kind", [Added, Aborted, Scheduled, Updated, Keyframe])
def test_no_kind_is_missed(kind: type[AnyRecord]) -> None:
    records = [record for record in mess() if not isinstance(record, kind)]
    view = Trace(records).view
    assert str(view) and all(block.state and block.token_ids is not None for block in view.blocks)


if __name__ == "__main__":
    FIXTURE.write_text(json.dumps(fixture_of(with_gaps())))
