"""R071: a prompt of exactly max_model_len tokens is refused, because one token must have room: prompt + 1 > max. (Pooling,
where such a prompt is fine, is not built yet.)"""

from __future__ import annotations

import pytest

from tests.scripted import scripted_llm


def test_the_words_are_right_at_the_boundary() -> None:
    llm = scripted_llm(max_model_len=32)
    with pytest.raises(ValueError) as refused:
        llm.generate("x" * 32, use_tqdm=False)
    assert "32 tokens" in str(refused.value) and "prompt + 1 > max" in str(refused.value)
    assert "longer than" not in str(refused.value)
    assert llm.generate("x" * 31, use_tqdm=False)[0].finished
