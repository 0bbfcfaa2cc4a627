"""The executor of one process: memory, blocks in and out, and the end."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nbengine import slow
from nbengine.config import EngineArgs, EngineConfig
from nbengine.errors import ConfigError, NBEngineError
from nbengine.executor import executor_class, make_executor
from nbengine.executor.base import Executor
from nbengine.executor.uniproc import UniProcExecutor
from nbengine.worker.memory import MemoryProbe, free_system_bytes
from tests.worker.rig import Rig, greedy, random_prompt

TinyModel = Callable[[str], Path]


def _config(path: Path, **options: object) -> EngineConfig:
    options = {"max_num_batched_tokens": 256, "max_num_seqs": 8} | options
    return EngineArgs(model=str(path), **options).create_engine_config(512)  # type: ignore[arg-type]


@pytest.mark.parametrize("arch", ["llama", "gpt2", "gemma3"])
def test_memory_is_measured_and_blocks_have_the_size_they_take(arch: str, tiny_model: TinyModel) -> None:
    executor = UniProcExecutor(_config(tiny_model(arch), block_size=8))
    free = executor.available_kv_memory()
    assert 0 < free <= free_system_bytes()
    executor.initialize_kv_cache(20)
    held = sum(cache.key.nbytes + cache.value.nbytes for cache in executor.runner.caches)
    assert held == 20 * executor.kv_bytes_per_block
    executor.shutdown()


def test_profiling_runs_the_largest_step(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = UniProcExecutor(_config(tiny_model("llama")))
    seen: list[tuple[int, int]] = []
    forward = executor.model.forward

    def spy(batch, caches, **options):  # type: ignore[no-untyped-def]
        seen.append((len(batch.token_ids), len(batch.logits_rows)))
        return forward(batch, caches, **options)

    monkeypatch.setattr(executor.model, "forward", spy)
    executor.available_kv_memory()
    assert seen == [(256, 8)]


def test_what_was_copied_out_can_be_put_back(tiny_model: TinyModel) -> None:
    rig = Rig(tiny_model("llama"))
    executor = UniProcExecutor(_config(tiny_model("llama"), block_size=4))
    executor.initialize_kv_cache(400)
    rig.runner = executor.runner
    request = rig.add("a", random_prompt(1, 15), greedy(6))
    rig.run({"a": 15})
    saved = executor.copy_blocks_out(request.blocks[:3])
    before = [cache.key.clone() for cache in executor.runner.caches]
    for cache in executor.runner.caches:
        cache.key[request.blocks[:3]] = 9.0
        cache.value[request.blocks[:3]] = 9.0
    executor.copy_blocks_in(request.blocks[:3], saved)
    assert all(torch.equal(old, cache.key) for old, cache in zip(before, executor.runner.caches))
    rig.run({"a": 1})
    plain = Rig(tiny_model("llama"))
    plain.add("a", random_prompt(1, 15), greedy(2))
    assert request.output == plain.generate()["a"]


def test_after_shutdown_the_executor_says_so(tiny_model: TinyModel) -> None:
    executor = UniProcExecutor(_config(tiny_model("llama")))
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(NBEngineError, match="shut down"):
        executor.initialize_kv_cache(3)


@pytest.mark.slow
def test_shutdown_frees_weights_and_cache(tiny_model: TinyModel) -> None:
    """Five executors one after the other, each with 200 MB of touched KV cache: the memory of one."""
    code = f"""
import torch
torch.set_num_threads(1)
from pathlib import Path
from nbengine import slow
from nbengine.config import EngineArgs
from nbengine.executor import make_executor
def rss():
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024
seen = []
for _ in range(5):
    executor = make_executor(EngineArgs(model={str(tiny_model("llama"))!r}).create_engine_config(512))
    executor.initialize_kv_cache(200_000_000 // executor.kv_bytes_per_block)
    for cache in executor.runner.caches:
        cache.key.fill_(1.0), cache.value.fill_(1.0)
    del cache
    executor.shutdown()
    seen.append(rss())
print(max(seen) - seen[0])
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("reads /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 30e6


def test_a_probe_sees_what_was_allocated_in_between() -> None:
    gc.collect()
    with MemoryProbe(torch.device("cpu")) as probe:
        torch.ones(50_000_000)
    if Path("/proc/self/clear_refs").exists():
        assert 150e6 < probe.peak_bytes < 400e6
    assert probe.free_bytes > 0


class _Other(Executor):
    """An executor of one's own."""

    kv_bytes_per_block = 1

    def available_kv_memory(self) -> int:
        return 10

    def initialize_kv_cache(self, num_blocks: int) -> None:
        return None

    def execute_model(self, plan: object) -> object:  # type: ignore[override]
        raise NotImplementedError


def test_executors_are_found_by_class_and_by_name(tiny_model: TinyModel) -> None:
    assert executor_class(None) is UniProcExecutor
    assert executor_class(_Other) is _Other
    assert executor_class("tests.executor.test_uniproc._Other").__name__ == "_Other"
    assert isinstance(make_executor(_config(tiny_model("llama"), executor_cls=_Other)), _Other)
    for wrong in ("nowhere.Nothing", "NoDots", "nbengine.errors.ModelError", dict):
        with pytest.raises(ConfigError, match="executor_cls"):
            executor_class(wrong)


def test_a_person_who_waits_for_the_compiler_is_told(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = UniProcExecutor(_config(tiny_model("llama")))
    monkeypatch.setattr(slow, "PATIENCE_S", 60.0)
    executor.available_kv_memory()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(slow, "PATIENCE_S", 0.05)
    run = executor.runner.run_dummy
    monkeypatch.setattr(executor.runner, "run_dummy", lambda *args, **kw: (time.sleep(0.2), run(*args, **kw)))
    executor.available_kv_memory()
    assert "being compiled for this processor. That takes up to a minute, and happens once" in capsys.readouterr().err
    executor.shutdown()
