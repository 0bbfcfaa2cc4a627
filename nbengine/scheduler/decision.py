"""Why a request did or did not get tokens in a step: one Decision for every request that the scheduler looked at."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """What became of a request in the running or the waiting pass. Each names the numbers that its Decision carries."""

    # got tokens
    DECODE = "decode"  # tokens
    PREFILL = "prefill"  # tokens, remaining (prompt tokens still to compute after this chunk), chunked (1 = more chunks)
    ADMITTED = "admitted"  # tokens, hit (tokens found in the prefix cache), remaining, chunked
    RESUMED = "resumed"  # tokens, hit, remaining, chunked; after a preemption
    # got none
    NO_NEED = "no_need"  # nothing to compute: at max_model_len, or its last token is in flight
    BUDGET = "budget"  # budget (of the step), used: the token budget was spent before it
    CHUNK_TOO_BIG = "chunk_too_big"  # needs, budget (left): chunked prefill is off and the prompt does not fit what is left
    NO_BLOCKS = "no_blocks"  # needs, free, watermark: a waiting request does not fit
    RESERVE = "reserve"  # needs, free, watermark: its whole sequence does not fit (scheduler_reserve_full_isl)
    MAX_NUM_SEQS = "max_num_seqs"  # running, limit
    MAX_LORAS = "max_loras"  # active, limit
    PREEMPTED = "preempted"  # needs, free (at that moment), computed (lost), freed; cause = who needed the blocks
    SELF_PREEMPTED = "self_preempted"  # the same, when it was its own victim
    PASS_ENDED = "pass_ended"  # a running request behind one that preempted itself: the running pass ended there
    ADMISSION_OFF = "admission_off"  # waiting, and a preemption in this step suppressed admission; cause = the victim
    BEHIND = "behind"  # waiting behind a head that could not be admitted; cause = the head
    PAUSED = "paused"  # the scheduler is paused
    THROTTLED = "throttled"  # data-parallel prefill throttling
    GRAMMAR = "grammar"  # waits for its grammar


class Decision(msgspec.Struct, array_like=True):
    """One request's verdict with the numbers behind it.

    cause: the request that it is about beside this one, if any. file, line: the source line that decided (file is empty
    for the stock scheduler), so that a person can read the rule itself.
    """

    request_id: str
    verdict: Verdict
    numbers: dict[str, int]
    cause: str | None = None
    line: int = 0
    file: str = ""
