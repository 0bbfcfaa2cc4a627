"""A model's tokenizer through the tokenizers library alone, where that gives what transformers would give.

Importing transformers costs seconds, and a tokenizer.json says nearly everything. What it does not say, and every tokenizer
whose other files could change the result, is left to transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # they take tokenizer.json as it is
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_HARMLESS = {"tokenizer_class", "model_max_length", "clean_up_tokenization_spaces", "chat_template", "backend", "is_local"}
_MORE_FILES = ("special_tokens_map.json", "added_tokens.json", "additional_chat_templates", "chat_template.json")


def read_plain_tokenizer(path: Path, load_full: Callable[[], Any]) -> PlainTokenizer | None:
    """The tokenizer of a model directory; None if it takes transformers to read it rightly.

    load_full: makes transformers' own tokenizer of the same directory.
    """
    try:
        settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
        backend = Tokenizer.from_file(str(path / "tokenizer.json"))
        template = path / "chat_template.jinja"
        text = template.read_text(encoding="utf-8") if template.is_file() else settings.get("chat_template")
    except Exception:  # the tokenizers library raises plain Exception; transformers says what is wrong
        return None
    special = {name: settings[name] for name in _SPECIAL if settings.get(name) is not None}
    plain = (
        settings.get("tokenizer_class") in _PLAIN_CLASSES
        and settings.keys() <= _HARMLESS | set(_SPECIAL)
        and not settings.get("clean_up_tokenization_spaces")
        and not any((path / name).exists() for name in _MORE_FILES)
        and isinstance(text, str | None)
        and (backend.truncation, backend.padding) == (None, None)
        and backend.get_vocab_size() <= 100_000  # beyond, transformers mends the rules of some tokenizers
    )
    marked = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    if not plain or not all(isinstance(token, str) and token in marked for token in special.values()):
        return None
    return PlainTokenizer(backend, special, text, load_full)


class PlainTokenizer:
    """What the engine needs of a tokenizer, under transformers' names. Anything else is asked of transformers' own one,
    which is loaded then: so a user of `get_tokenizer()` misses nothing."""

    def __init__(
        self, backend: Tokenizer, special: dict[str, str], chat_template: str | None, load_full: Callable[[], Any]
    ) -> None:
        self.backend_tokenizer = backend
        self.special_tokens_map = special
        self.chat_template = chat_template
        self.eos_token_id: int | None = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
        self._load_full = lru_cache(maxsize=1)(load_full)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    def encode(self, text: str, *, add_special_tokens: bool = True, **options: Any) -> list[int]:
        if options or not isinstance(text, str):
            return list(self._load_full().encode(text, add_special_tokens=add_special_tokens, **options))
        return list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int] | int, skip_special_tokens: bool = False, **options: Any) -> Any:
        if options or not isinstance(token_ids, list):
            return self._load_full().decode(token_ids, skip_special_tokens=skip_special_tokens, **options)
        return self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Plain messages to text are rendered here; tools, documents, parts, and errors are transformers' business."""
        if _is_plain_chat(conversation, options):
            template = options.get("chat_template") or self.chat_template
            try:
                return _compiled(template).render(
                    **self.special_tokens_map,
                    messages=[dict(message) for message in conversation],
                    tools=None,
                    documents=None,
                    add_generation_prompt=options.get("add_generation_prompt", False),
                )
            except jinja2.TemplateError:
                return self._load_full().apply_chat_template(conversation, **options)  # its rendering, or its error
        return self._load_full().apply_chat_template(conversation, **options)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._load_full()(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._load_full(), name)


def _is_plain_chat(conversation: Any, options: dict[str, Any]) -> bool:
    """Messages of role and content, both text, and no option that asks for more than a rendering."""
    unusual = {name for name, value in options.items() if value is not None and value is not False}
    return (
        unusual <= {"chat_template", "add_generation_prompt"}
        and options.get("tokenize", True) is False
        and isinstance(conversation, list)
        and all(isinstance(message, dict) and message.keys() == {"role", "content"} for message in conversation)
        and all(type(text) is str for message in conversation for text in message.values())
    )


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    """A template with the rules of whitespace, and the extra functions, that model makers write templates for."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(template)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
