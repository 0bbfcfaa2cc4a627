"""What narrows the choice of the next token: min-p, top-k, top-p, grammar bitmask."""

import torch
from torch import Tensor


def sample_filter(
    logits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Set the logits of tokens that may not be sampled to -inf: min-p first, then top-k, then top-p.

    That is vLLM's order: each later filter sees the distribution that the earlier ones left, renormalised.
    min-p drops tokens whose probability is below min_p times the largest. top-k keeps the k largest logits, and all
    that tie with the k-th. top-p sorts what is left by probability (equal ones by index, ascending) and keeps the
    largest whose running sum reaches p; one token always stays.

    Args:
        logits: (R, V) float32, contiguous. Temperature is already applied.
        top_k: (R,) int32 or int64; 0, negative or >= V keep all. None: off for every row.
        top_p: (R,) float32; 1 keeps all. None: off for every row.
        min_p: (R,) float32; 0 keeps all. None: off for every row.
        out: (R, V) to write into; may be logits itself.

    Returns:
        (R, V), new unless `out` is given.

    Source: top-k, Fan et al. 2018; top-p, Holtzman et al. 2019; min-p, Nguyen et al. 2024; order and ties as in vLLM v1.
    """
    if out is None:
        out = logits.clone()
    elif out is not logits:
        out.copy_(logits)
    if min_p is not None:
        probabilities = out.softmax(dim=-1)
        floor = probabilities.amax(dim=-1, keepdim=True) * min_p[:, None]
        out.masked_fill_(probabilities < floor, float("-inf"))
    if top_k is None and top_p is None:
        return out
    ascending, order = out.sort(dim=-1, stable=True)
    vocabulary = out.shape[1]
    if top_k is not None:
        k = torch.where((top_k <= 0) | (top_k > vocabulary), vocabulary, top_k).long()
        kth_largest = ascending.gather(1, (vocabulary - k)[:, None])
        ascending.masked_fill_(ascending < kth_largest, float("-inf"))
    if top_p is not None:
        below = ascending.softmax(dim=-1).cumsum(dim=-1)  # mass of a token and all smaller ones
        dropped = (below <= 1.0 - top_p[:, None]) & (top_p[:, None] < 1.0)
        dropped[:, -1] = False
        ascending.masked_fill_(dropped, float("-inf"))
    return out.scatter_(1, order, ascending)


top_k_top_p_min_p = sample_filter
"""The same function under the name that lists what it does."""


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens of each row, and their probabilities.

    Args:
        logits: (R, V) float32, contiguous.
        count: K, at most V.

    Returns:
        (R, K) int64, the likeliest first (which of two equal ones comes first is open), and (R, K) float32.
    """
    top = torch.topk(logits, count, dim=-1)
    return top.indices, (top.values - logits.logsumexp(dim=-1, keepdim=True)).exp()


def apply_grammar_bitmask(logits: Tensor, bitmask: Tensor) -> Tensor:
    """Set the logits of tokens that the grammar forbids to -inf, in place.

    Args:
        logits: (R, V) float32, rows contiguous. Changed in place.
        bitmask: (R, ceil(V / 32)) int32: bit i % 32 of word i // 32 is 1 where token i is allowed.

    Returns:
        logits.

    Source: the layout is that of xgrammar and vLLM.
    """
    token = torch.arange(logits.shape[1], device=logits.device)
    allowed = (bitmask[:, token // 32] >> (token % 32).to(torch.int32)) & 1
    return logits.masked_fill_(allowed == 0, float("-inf"))
