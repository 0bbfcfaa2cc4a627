"""Who serves which device, and what an import costs."""

import subprocess
import sys
from pathlib import Path

import nbengine_kernels
import pytest
import torch
from nbengine_kernels import DIALECTS, kernels_for, reference
from nbengine_kernels.cache import numba_cache_dir, set_numba_cache_dir


def _python(code: str) -> str:
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_the_dtype_and_the_device_decide() -> None:
    assert kernels_for("cpu", torch.float16) is reference
    assert kernels_for("meta", torch.float32) is reference
    assert kernels_for("cpu", torch.float32, force="reference") is reference
    assert kernels_for("cpu", torch.float32).__name__ == "nbengine_kernels.cpu"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="fast"):
        kernels_for("cpu", torch.float32, force="fast")


def test_the_import_is_light() -> None:
    code = "import sys, nbengine_kernels; print([m for m in ('numba', 'triton', 'nbengine') if m in sys.modules])"
    assert _python(code) == "[]"


def test_every_dialect_has_every_name() -> None:
    names = set(reference.__all__)
    code = "import sys; from nbengine_kernels import {0}; print(sorted({0}.__all__))"
    for dialect in DIALECTS:
        assert set(eval(_python(code.format(dialect)))) == names


def test_without_numba_the_reference_serves_with_one_warning() -> None:
    code = """
import importlib.util, warnings
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba" else find(name, *rest)
import torch, nbengine_kernels
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    a = nbengine_kernels.kernels_for("cpu", torch.float32)
    b = nbengine_kernels.kernels_for("cpu", torch.bfloat16)
print(a.__name__, b.__name__, len(caught), caught[0].message)
"""
    said = _python(code)
    assert said.startswith("nbengine_kernels.reference nbengine_kernels.reference 1 ")
    assert "numba" in said


def test_the_cache_folder_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbengine_kernels.cache._chosen", [])
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "a.py").write_text("x = 1")
    set_numba_cache_dir(tmp_path / "cache")
    first = numba_cache_dir(sources)
    assert first.parent == tmp_path / "cache"
    assert numba_cache_dir(sources) == first
    (sources / "a.py").write_text("x = 2")
    assert numba_cache_dir(sources) != first


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbengine_kernels.cache._chosen", [])
    (tmp_path / "file").write_text("")
    set_numba_cache_dir(tmp_path / "file")
    assert tmp_path not in numba_cache_dir(tmp_path).parents


def test_the_public_names() -> None:
    assert set(nbengine_kernels.__all__) <= set(dir(nbengine_kernels))
