"""Decisions as sentences, with their numbers."""

from __future__ import annotations

from collections.abc import Iterable

from nbengine.debug.arguments import known_request
from nbengine.kv_cache.ops import Op
from nbengine.observe.records import Scheduled, StepRecord
from nbengine.observe.state import RequestView
from nbengine.observe.tables import counted, numbers_text
from nbengine.observe.view import EngineView
from nbengine.scheduler.decision import Decision, Verdict

GOT_TOKENS = (Verdict.DECODE, Verdict.PREFILL, Verdict.ADMITTED, Verdict.RESUMED)
LOST = (Verdict.PREEMPTED, Verdict.SELF_PREEMPTED)


def explain(view: EngineView, steps: Iterable[StepRecord], request_id: str) -> str:
    """Why the request is where it is, in a sentence. steps: the recorded ones, for what happened before the last."""
    request = view.requests[known_request(view, request_id)]
    if request.is_finished:
        return _finished(request)
    plan = view.scheduled
    steps = list(steps)
    decision = next((d for d in view.decisions if d.request_id == request_id), None)
    lost_since = request.status == "preempted" and decision is not None and decision.verdict in GOT_TOKENS
    if plan is not None and decision is not None and not lost_since:
        policy = next((step.policy for step in reversed(steps) if step.step == plan.step), view.limits.policy)
        sentence = sentence_of(policy, plan, decision, "it")
        if decision.verdict not in (*GOT_TOKENS, *LOST) and request.status == "preempted":
            sentence += " " + (last_preemption(steps, request_id) or "")
        return _place(view, request) + sentence
    if request.status == "preempted":
        story = last_preemption(steps, request_id)
        return story or f"{request_id} was preempted by hand and waits to be admitted again."
    return f"{_place(view, request)}no step has looked at {request_id} yet; the next schedule will."


def why_not(step: StepRecord, request_id: str) -> str:
    """Why the request did not get (more) tokens in this step; if it did get some, says so."""
    plan = step.scheduled
    if plan is None:
        return f"Step {step.step} has not been scheduled: nothing was decided."
    decision = next((d for d in plan.decisions if d.request_id == request_id), None)
    if decision is None:
        known = any(getattr(i, "request_id", None) == request_id for i in step.inputs)
        tail = "it came or went between the phases of that step" if known else "it was not alive then"
        return f"Step {step.step} has no decision about {request_id}: {tail}."
    return sentence_of(step.policy, plan, decision)


def sentence_of(policy: str, plan: Scheduled, decision: Decision, subject: str | None = None) -> str:
    """One decision in words, about `subject`: the request's id, if nothing else is given. policy: that of the step."""
    who, n, cause = subject or decision.request_id, decision.numbers, decision.cause
    step = f"in step {plan.step} "
    if decision.verdict in GOT_TOKENS:
        return f"{step}{who} {_got(decision)}."
    if decision.verdict in LOST:
        return preemption_story(policy, plan, decision)
    watermark = f", with {n['watermark']} to be kept free" if n.get("watermark") else ""
    room = f"{counted(n.get('needs', 0), 'block')} and {n.get('free')} are free{watermark}"
    reasons = {
        Verdict.NO_NEED: "has nothing to compute: all its tokens are computed or in flight",
        Verdict.BUDGET: f"got nothing: the token budget of {n.get('budget')} was used up before it",
        Verdict.CHUNK_TOO_BIG: f"was not admitted: it needs {n.get('needs')} tokens in one step, with chunked prefill "
        f"off, and {n.get('budget')} of the budget are left",
        Verdict.NO_BLOCKS: f"was not admitted: it needs {room}",
        Verdict.RESERVE: f"was not admitted: its whole sequence needs {room}",
        Verdict.MAX_NUM_SEQS: f"was not admitted: {n.get('running')} requests run, and max_num_seqs is {n.get('limit')}",
        Verdict.MAX_LORAS: f"was not admitted: {n.get('active')} adapters are in use, and max_loras is {n.get('limit')}",
        Verdict.PASS_ENDED: f"got nothing: {cause}, before it, preempted itself, which ends the pass over the running",
        Verdict.ADMISSION_OFF: f"was not admitted: {cause} was preempted in this step, and then nobody is admitted",
        Verdict.BEHIND: f"was not admitted: it stands behind {cause}, which does not fit, and nobody overtakes",
        Verdict.PAUSED: "got nothing: the scheduler is paused",
        Verdict.THROTTLED: "got nothing: prefills wait for the other data-parallel ranks in this step",
        Verdict.GRAMMAR: "was not admitted: its grammar is still being compiled",
    }
    return f"{step}{who} {reasons[decision.verdict]}."


def _got(decision: Decision) -> str:
    n = decision.numbers
    tokens = n.get("tokens", 0)
    if decision.verdict is Verdict.DECODE:
        return f"decodes {counted(tokens, 'token')}"
    rest = f", {n.get('remaining', 0)} are left for later steps" if n.get("chunked") else ", which is all that was left"
    if decision.verdict is Verdict.PREFILL:
        return f"prefills {counted(tokens, 'token')}{rest}"
    verb = "was admitted" if decision.verdict is Verdict.ADMITTED else "was admitted again after its preemption"
    hit = n.get("hit", 0)
    found = f"{counted(hit, 'token')} found in the prefix cache" if hit else "nothing found in the prefix cache"
    return f"{verb}: {found}, {tokens} to compute now{rest}"


def preemption_story(policy: str, plan: Scheduled, decision: Decision) -> str:
    """Who needed what, who was chosen by which rule, what it gave back and lost, who took the blocks."""
    n, victim = decision.numbers, decision.request_id
    needer = decision.cause or victim
    rule = {
        "fcfs": "as the last admitted of the running requests",
        "priority": "as the least important of the running requests (largest priority number, then latest arrival)",
    }.get(policy, "by the scheduler's own rule")
    if decision.file:  # not the stock scheduler's own rule
        rule = f"by {decision.rule}"
    itself = " itself" if needer == victim else ""
    needs, freed, lost = counted(n.get("needs", 0), "block"), counted(n.get("freed", 0), "block"), n.get("computed", 0)
    return (
        f"in step {plan.step} {victim} was preempted: {needer}{itself} needed {needs} and {n.get('free', 0)} were free; "
        f"{victim} was chosen {rule}; it gave back {freed} and must compute {counted(lost, 'token')} again"
        f"{_takers(plan, victim)}."
    )


def _takers(plan: Scheduled, victim: str) -> str:
    """Who took which of the victim's blocks later in the same step."""
    freed: set[int] = set()
    taken: dict[str, list[int]] = {}
    for op in plan.block_ops:
        if op.request_id == victim and op.op in (Op.FREE_FRONT, Op.FREE_BACK):
            freed.add(op.block_id)
        elif op.op is Op.ALLOCATE and op.block_id in freed and op.request_id is not None:
            taken.setdefault(op.request_id, []).append(op.block_id)
    if not taken:
        return ", and nobody took them in that step"
    parts = [f"{who} took block{'s' * (len(blocks) > 1)} {numbers_text(sorted(blocks))}" for who, blocks in taken.items()]
    return "; " + ", ".join(parts)


def last_preemption(steps: Iterable[StepRecord], request_id: str) -> str | None:
    """The story of the request's last recorded preemption; None if none is recorded."""
    for step in reversed(list(steps)):
        for change in step.inputs:
            if request_id in getattr(change, "values", {}).get("preempted", ()):
                within = step.scheduled is not None and change.at > step.scheduled.at
                when = f"within step {step.step}" if within else f"before step {step.step}"
                return f"{request_id} was preempted by hand {when} and waits to be admitted again."
        for decision in step.scheduled.decisions if step.scheduled else ():
            if decision.request_id == request_id and decision.verdict in LOST and step.scheduled is not None:
                story = preemption_story(step.policy, step.scheduled, decision)
                return story[0].upper() + story[1:]
    return None


def _place(view: EngineView, request: RequestView) -> str:
    name = request.request_id
    if name in view.waiting:
        return f"{name} waits, place {view.waiting.index(name) + 1} of {len(view.waiting)}: "
    share = f"{request.num_computed_tokens} of {request.num_tokens} tokens computed"
    return f"{name} runs ({share}, {counted(len(request.block_ids), 'block')}): "


def _finished(request: RequestView) -> str:
    why = {
        "stop": "it met its end: a stop token or stop string",
        "length": "it reached its length limit",
        "abort": "it was aborted",
        "repetition": "it repeated itself",
    }.get(request.finish_reason or "", request.finish_reason)
    made = request.num_tokens - request.num_prompt_tokens
    again = f", preempted {request.num_preemptions} times" if request.num_preemptions else ""
    stop = f" ({request.stop_reason!r})" if request.stop_reason is not None else ""
    return f"{request.request_id} finished: {why}{stop}, after {counted(made, 'token')}{again}."
