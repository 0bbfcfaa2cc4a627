"""When a request has said enough."""

from __future__ import annotations

from nbengine.protocol import FinishReason
from nbengine.sampling_params import RepetitionDetection
from nbengine.scheduler.request import Request


def stop_of(request: Request, token: int, max_model_len: int) -> tuple[FinishReason, int | str | None] | None:
    """Finish reason and stop reason if `token`, the request's last, ends it; None if it goes on.

    In vLLM's order: nothing before min_tokens, then eos, stop tokens, length, repetition. The model's length limit holds
    under min_tokens too; vLLM 0.25.1 lets such a request run on for ever.
    """
    length = len(request.token_ids)
    if length < request.min_total:
        return (FinishReason.LENGTH, None) if length >= max_model_len else None
    if token in request.ending_ids:
        is_eos = token == request.eos_token_id and not request.sampling_params.ignore_eos
        return FinishReason.STOP, None if is_eos else token
    if length >= request.max_total:
        return FinishReason.LENGTH, None
    if (rule := request.repetition) is not None:
        longest = rule.max_pattern_size * rule.min_count
        if repeats(request.token_ids[max(request.num_prompt_tokens, length - longest) :], rule):
            return FinishReason.REPETITION, "repetition_detected"
    return None


def repeats(tokens: list[int], rule: RepetitionDetection) -> bool:
    """Do `tokens` end in one pattern, of a size that the rule allows, at least `min_count` times in a row?

    O(max_pattern_size * min_count): a pattern of size s repeats if the tail equals itself shifted by s.
    """
    for size in range(max(1, rule.min_pattern_size), rule.max_pattern_size + 1):
        span = size * rule.min_count
        if span > len(tokens):
            return False
        tail = tokens[-span:]
        if tail[size:] == tail[:-size]:
            return True
    return False
