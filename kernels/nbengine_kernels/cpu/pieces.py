"""How attention is cut into pieces of work, and how many heads of a piece a thread takes."""

from typing import Any

import numpy as np
from numba import njit

from nbengine_kernels.cpu import ir

TILE_ROWS = 48  # of a piece: query heads that share a KV head
LEAST_SHARED = 64  # keys that two requests must share to be taken together
MANY_PIECES = 8  # from so many on, all KV heads of a piece are one unit of work


@njit(cache=True, error_model="numpy")
def _shared_keys(tables: Any, table_stride: Any, lengths: Any, a: Any, b: Any, bs: Any) -> Any:
    """How many keys the requests a and b have in the same blocks, both requests' last key left out."""
    most = (min(ir.load_i32(lengths, a), ir.load_i32(lengths, b)) - 1) // bs
    n = np.int64(0)
    while n < most and ir.load_i32(tables, a * table_stride + n) == ir.load_i32(tables, b * table_stride + n):
        n += 1
    return n * bs


@njit(cache=True, error_model="numpy")
def cut_pieces(
    tables: Any, table_stride: Any, starts: Any, lengths: Any, requests: Any, group: Any, bs: Any, window: Any
) -> Any:
    """(pieces, 5): first request, number of requests, first query token, query tokens, keys that all of them share."""
    tokens = max(1, TILE_ROWS // group)
    total = ir.load_i32(starts, requests)
    pieces = np.empty((total // tokens + requests, 5), dtype=np.int64)
    count, r = np.int64(0), np.int64(0)
    while r < requests:
        first, end = ir.load_i32(starts, r), ir.load_i32(starts, r + 1)
        members, shared = np.int64(1), np.int64(0)
        if end - first == 1 and window == 0:
            while members < tokens and r + members < requests and ir.load_i32(starts, r + members + 1) == end + members:
                common = _shared_keys(tables, table_stride, lengths, r, r + members, bs)
                common = common if members == 1 else min(common, shared)
                if common < LEAST_SHARED:
                    break
                shared = common
                members += 1
        if members > 1:
            pieces[count] = (r, members, first, members, shared)
            count += 1
        else:
            for t in range(first, end, tokens):
                pieces[count] = (r, 1, t, min(tokens, end - t), 0)
                count += 1
        r += members
    return pieces[:count]


@njit(cache=True, error_model="numpy")
def heads_of_unit(pieces: Any, kv_heads: Any) -> Any:
    """KV heads that a thread takes at a time: all, since they lie together in memory, if that leaves enough to share out."""
    return kv_heads if pieces.shape[0] >= MANY_PIECES else np.int64(1)
