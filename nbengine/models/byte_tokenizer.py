"""A tokenizer without a model: token i is byte i, and 256 ends a text."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from nbengine.models.tokenizer import PlainTokenizer

EOS, EOS_TOKEN = 256, "<eos>"


def byte_tokenizer() -> PlainTokenizer:
    backend = Tokenizer(models.BPE({char: byte for byte, char in enumerate(byte_alphabet())} | {EOS_TOKEN: EOS}, []))
    backend.add_special_tokens([EOS_TOKEN])
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()

    def load_full() -> Any:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS_TOKEN)

    return PlainTokenizer(backend, {"eos_token": EOS_TOKEN}, None, load_full)


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
