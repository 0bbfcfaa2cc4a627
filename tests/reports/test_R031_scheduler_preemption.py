"""R031, the scheduler's numbers: who is preempted when, what it computes again, and that nothing is lost."""

from __future__ import annotations

from tests.scheduler.desk import Desk


def pair() -> Desk:
    return Desk(usable=4, max_model_len=16, enable_prefix_caching=False)


def test_b_is_preempted_once_and_both_equal_their_solo_runs() -> None:
    """Steps count from 1 here. B loses its blocks in step 6, as the report has it: both have 8 tokens in 2 blocks, and A
    needs a third. A, with 8 tokens to make, is done in step 8, B in step 11, having computed 9 tokens in one step."""
    desk = pair()
    desk.add("A", 4)
    request = desk.add("B", 4)
    preempted, prefills, done = {}, {}, {}
    for step in range(1, 12):
        plan = desk.step()
        for name in plan.preempted_req_ids:
            preempted.setdefault(name, []).append(step)
        for resumed in plan.scheduled_resumed_reqs:
            prefills[step] = plan.num_scheduled_tokens[resumed.request_id]
        done |= {name: step for name in desk.reasons if name not in done}
    assert preempted == {"B": [6]} and prefills == {9: 9}
    assert done == {"A": 8, "B": 11} and request.num_preemptions == 1
    assert desk.num_free == 4
    for name in "AB":
        alone = pair()
        alone.add(name, 4)
        alone.run()
        assert alone.tokens[name] == desk.tokens[name]
