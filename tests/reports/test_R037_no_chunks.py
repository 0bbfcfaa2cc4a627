"""R037: with chunked prefill off, a budget below max_model_len is an error at the start, so no prompt can wait for ever; one
that fills the budget passes in one step. A later cut of the budget refuses what it could never hold."""

from __future__ import annotations

import pytest

from nbengine.errors import ConfigError, InvalidRequestError
from tests.scheduler.desk import Desk


def test_the_error_names_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=2048 is less than max_model_len=4096"):
        Desk(enable_chunked_prefill=False, max_num_batched_tokens=2048, max_model_len=4096)


def test_2048_in_one_step_and_2049_refused() -> None:
    desk = Desk(usable=200, block_size=16, enable_chunked_prefill=False, max_num_batched_tokens=4096, max_model_len=4096)
    desk.scheduler.config.scheduler.max_num_scheduled_tokens = 2048
    desk.add("fits", 2048, max_tokens=1)
    with pytest.raises(InvalidRequestError, match="2049 prompt tokens must fit one step, and the token budget is 2048"):
        desk.add("too long", 2049)
    assert desk.step().num_scheduled_tokens == {"fits": 2048}
    assert desk.reasons == {"fits": "length"}
