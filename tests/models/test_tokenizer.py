"""The tokenizer without transformers: the same ids, texts and chats, or transformers itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from nbengine.config import ModelConfig
from nbengine.models.loader import load_tokenizer
from nbengine.models.tokenizer import PlainTokenizer, read_plain_tokenizer

STRINGS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces\n\nand lines\t",
    "1234567890 ①② ३४ 3.14",
    "def f(x):\n    return x**2",
    "ďábel 🔥 中文 👩‍👩‍👧 \ud7ff",
    "<|im_start|>user\n<|im_end|><|endoftext|>",
    "<|im_start|",
    "\x00\x7f\u200b",
]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": " {{ x }} {% y %} <b>&amp;</b> "}],
    [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", ""), ("user", "🔥"))],
    [{"role": "user", "content": None}, {"role": "assistant", "content": "x", "tool_calls": None}],
    [{"role": "user", "content": "c", "name": "extra"}],
]
TEMPLATES = [
    None,
    "{%- for m in messages %}\n  {{ m.role }}: {{ m.content | tojson }}\n{%- endfor %}",
    "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    "{{ bos_token }}{{ eos_token }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ tools }}",
    "{{ strftime_now('%Y') if strftime_now is defined else 'never' }}{{ documents is none }}{{ absent }}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "{{ raise_exception('No such role.') }}",
    "{{ messages[0]['content'].__class__ }}",
]


@pytest.fixture(scope="module")
def smollm2() -> tuple[PlainTokenizer, Any]:
    from nbengine.models.catalog import CATALOG

    entry = CATALOG["smollm2-135m"]
    if not entry.is_local:
        pytest.skip("`nbengine pull` has not been run")
    return _both(entry.path)


def _both(path: Path) -> tuple[PlainTokenizer, Any]:
    from transformers import AutoTokenizer

    plain = load_tokenizer(ModelConfig(model=str(path)))
    assert isinstance(plain, PlainTokenizer)
    return plain, AutoTokenizer.from_pretrained(str(path), local_files_only=True)


def test_ids_and_texts_are_those_of_transformers(smollm2: tuple[PlainTokenizer, Any]) -> None:
    plain, full = smollm2
    assert len(plain) == len(full) and plain.eos_token_id == full.eos_token_id
    assert plain.special_tokens_map == full.special_tokens_map
    for text in STRINGS:
        for special in (True, False):
            ids = plain.encode(text, add_special_tokens=special)
            assert ids == full.encode(text, add_special_tokens=special), text
            assert plain.decode(ids, skip_special_tokens=special) == full.decode(ids, skip_special_tokens=special)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
def test_chats_are_rendered_as_transformers_renders_them(
    smollm2: tuple[PlainTokenizer, Any], chat: list[dict[str, Any]], template: str | None
) -> None:
    for options in (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"continue_final_message": True},
        {"enable_thinking": False},
    ):
        wanted, got = (
            _outcome(tokenizer.apply_chat_template, chat, tokenize=False, chat_template=template, **options)
            for tokenizer in reversed(smollm2)
        )
        assert got == wanted


def _outcome(render: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return render(*args, **options)
    except Exception as error:
        return type(error), str(error)


def test_a_user_misses_nothing_of_transformers_tokenizer(smollm2: tuple[PlainTokenizer, Any]) -> None:
    plain, full = smollm2
    assert plain("Hello")["input_ids"] == full("Hello")["input_ids"]
    assert plain.convert_ids_to_tokens([5, 400]) == full.convert_ids_to_tokens([5, 400])
    assert plain.batch_decode([[5], [400]]) == full.batch_decode([[5], [400]])
    assert plain.eos_token == full.eos_token and plain.all_special_ids == full.all_special_ids
    with pytest.raises(AttributeError, match="no_such_thing"):
        plain.no_such_thing  # noqa: B018


def _save(path: Path, *, settings: dict[str, Any], post: Any = None) -> Path:
    """A small byte-level tokenizer with <s> and </s>, as transformers writes one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    if post is not None:
        backend.post_processor = post
    backend.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **settings}))
    return path


def test_a_beginning_token_of_the_file_is_kept(tmp_path: Path) -> None:
    post = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    plain, full = _both(_save(tmp_path, settings={"bos_token": "<s>", "eos_token": "</s>"}, post=post))
    assert plain.encode("ab") == full.encode("ab") and plain.encode("ab")[0] == 256
    assert plain.encode("ab", add_special_tokens=False) == full.encode("ab", add_special_tokens=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "LlamaTokenizer"},
        {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, "bos_token": "<s>"},
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<new>"},
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": {"content": "</s>", "lstrip": True}},
        {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True},
        {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": [{"name": "default", "template": "x"}]},
    ],
)
def test_what_tokenizer_json_does_not_say_is_left_to_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    assert read_plain_tokenizer(_save(tmp_path, settings=settings), lambda: None) is None


def test_the_native_path_does_not_import_transformers() -> None:
    """Its import costs seconds; so does what it brings. A fresh process shows it."""
    from nbengine.models.catalog import CATALOG

    if not CATALOG["smollm2-135m"].is_local:
        pytest.skip("`nbengine pull` has not been run")
    code = """
import sys
from nbengine import LLM, SamplingParams
llm = LLM("smollm2-135m", num_gpu_blocks_override=16, max_model_len=128)
out = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=2, seed=1), use_tqdm=False)
assert len(out[0].outputs[0].token_ids) == 2
print(sorted({"transformers", "huggingface_hub", "gguf"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
