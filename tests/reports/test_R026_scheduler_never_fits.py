"""R026, the scheduler alone: a prompt that no empty pool could hold is refused when it is added, with both numbers, and the
one behind it runs."""

from __future__ import annotations

import pytest

from nbengine.errors import InvalidRequestError
from tests.scheduler.desk import Desk


def test_refused_with_both_numbers() -> None:
    desk = Desk(usable=49, block_size=16, max_model_len=2048, max_num_batched_tokens=2048)
    with pytest.raises(InvalidRequestError, match="1002 prompt tokens need 63 KV blocks of 16 tokens, and 49 are"):
        desk.add("p1", 1002)
    desk.add("p2", 5, max_tokens=3)
    desk.run(limit=4)
    assert len(desk.tokens["p2"]) == 3 and desk.num_free == 49
