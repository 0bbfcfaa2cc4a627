"""R043: tokens that a preempted request finds again in the cache are counted apart, so that the hit rate shown to users is
what prompts shared. Unrelated prompts: no hits, whatever was preempted."""

from __future__ import annotations

from tests.scheduler.desk import Desk


def test_unrelated_prompts_have_no_hits() -> None:
    desk = Desk(usable=4, max_model_len=16)
    desk.add("A", 4)
    request = desk.add("B", 4)
    hits = again = 0
    while desk.scheduler.has_unfinished_requests():
        plan = desk.schedule()
        stats = desk.update(plan, desk.execute(plan)).stats
        assert stats is not None
        hits += stats.prefix_cache.hits
        again += stats.prefix_cache.preempted_hits
    assert hits == 0 and desk.cached == {"A": 0, "B": 0}
    found = desk.scheduler.admissions.preempted_hits  # `again` counts each look at the blocked head, as vLLM does
    assert request.num_preemptions == 1 and request.num_cached_tokens == found == 4 and again == 3 * found
    assert (desk.scheduler.admissions.requests, desk.scheduler.admissions.preempted_requests) == (2, 1)


def test_a_blocked_head_counts_once_in_admissions() -> None:
    desk = Desk(usable=5)
    desk.add("runner", 12, max_tokens=6)
    desk.step()
    desk.add("head", 10, max_tokens=1)
    desk.run()
    assert desk.scheduler.admissions.queries == 22 and desk.scheduler.admissions.requests == 2
