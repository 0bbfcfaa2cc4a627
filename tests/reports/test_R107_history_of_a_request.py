"""R107: which iterations did a request take part in? Its timeline, with what happened in each."""

from __future__ import annotations

from tests.observe.engines import make_llm


def test_the_history_of_a_preempted_request() -> None:
    dbg = make_llm(num_blocks=12, max_model_len=40).debug()
    for i in range(4):
        dbg.add(f"abcdefgh{i}", max_tokens=16, temperature=0, ignore_eos=True)
    dbg.run()
    victim = next(name for name, request in dbg.view.requests.items() if request.num_preemptions)
    history = dbg.history(request=victim)
    events = [moment.event for moment in history]
    order = [events.index(event) for event in ("queued", "admitted", "scheduled", "preempted", "resumed", "finished")]
    assert order == sorted(order) and order[-1] == len(events) - 1
    assert [moment.step for moment in history] == sorted(moment.step for moment in history)
    tokens = sum(moment.tokens for moment in history)
    batches = [dict(zip(s.scheduled.request_ids, s.scheduled.tokens)) for s in dbg.records if s.scheduled]
    assert tokens == sum(batch.get(victim, 0) for batch in batches)
    resumed, preempted = history[events.index("resumed")], history[events.index("preempted")]
    assert resumed.cached == dbg.view.requests[victim].num_cached_tokens and preempted.blocks == 0 < resumed.blocks
    assert "computed tokens lost" in preempted.detail
    assert history._repr_mimebundle_()["text/html"].count("<tr>") == len(history) + 1
