"""R025: with the model pulled, building the default engine and using it attempts no connection at all."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from nbengine import LLM, SamplingParams
from nbengine.models.catalog import pull


@pytest.mark.slow
def test_the_default_engine_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pull(progress=False)

    def refuse(*args: Any) -> None:
        raise AssertionError(f"a connection was attempted: {args[1:]}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with LLM(kv_cache_memory_bytes=2**26, max_model_len=256) as llm:
        (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert "Paris" in output.outputs[0].text
