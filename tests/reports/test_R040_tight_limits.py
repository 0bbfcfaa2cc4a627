"""R040: every combination of tiny limits is either refused with a reason or works to the end; nothing in between."""

from __future__ import annotations

from itertools import product

import pytest

from nbengine.errors import ConfigError, InvalidRequestError
from tests.scheduler.desk import Desk

BLOCK = 3
GRID = list(product((1, 2, 3, BLOCK, BLOCK + 1), (1, 2), range(1, 7), ("fcfs", "priority"), (True, False)))


@pytest.mark.parametrize(("budget", "seqs", "usable", "policy", "caching"), GRID)
def test_refused_or_done(budget: int, seqs: int, usable: int, policy: str, caching: bool) -> None:
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": seqs, "policy": policy, "enable_prefix_caching": caching}
    try:
        desk = Desk(usable, block_size=BLOCK, max_model_len=usable * BLOCK, **limits)
    except ConfigError as error:
        assert budget < seqs and f"max_num_batched_tokens={budget}" in str(error)
        return
    added = set()
    for number, length in enumerate((1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK - 1)):
        if length >= usable * BLOCK:
            continue  # the front refuses it
        try:
            desk.add(f"r{number}", length, max_tokens=BLOCK + 2, priority=number % 2)
            added.add(f"r{number}")
        except InvalidRequestError as error:
            assert "can never fit" in str(error)
    desk.run(limit=400)
    assert set(desk.reasons) == added and desk.num_free == usable
