"""R077: more requests at once than the engine takes; each must get its answer.

There is no asynchronous API yet, and the waiting queue has no bound, so nobody is refused for its length. What can be
tried is the in-process way: requests that come in threes and fours, from inside the loop that steps.
"""

from __future__ import annotations

from nbengine import SamplingParams
from tests.scripted import scripted_llm


def test_twenty_requests_over_four_seats() -> None:
    llm = scripted_llm({f"r{i}": f"answer {i}" for i in range(20)}, max_num_seqs=4)
    engine, answered, added = llm.llm_engine, {}, 0
    while added < 20 or engine.has_unfinished_requests():
        for _ in range(3 + added % 2):
            if added < 20:
                engine.add_request(f"r{added}", "x", SamplingParams(max_tokens=20))
                added += 1
        for output in engine.step():
            if output.finished:
                answered[output.request_id] = output.outputs[0].text
    assert answered == {f"r{i}": f"answer {i}" for i in range(20)}
    engine.step()  # one more, empty: it tells the executor who has finished
    assert engine.get_num_unfinished_requests() == 0 and not engine.has_work()
