"""The text of single tokens, as a person should see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def token_texts(tokenizer: Any) -> Callable[[list[int]], list[str]]:
    """A function from token ids to their texts. Bytes that are no whole character stand as \\xNN."""
    bytes_of = _byte_table()

    def texts(token_ids: list[int]) -> list[str]:
        return [_text(tokenizer, token_id, bytes_of) for token_id in token_ids]

    return texts


def _text(tokenizer: Any, token_id: int, bytes_of: dict[str, int]) -> str:
    text = str(tokenizer.decode([token_id], skip_special_tokens=False))
    if "\ufffd" not in text:
        return text
    piece = _piece(tokenizer, token_id)
    if piece is None:
        return text
    if piece.startswith("<0x") and piece.endswith(">"):  # byte fallback, as SentencePiece writes it
        return f"\\x{piece[3:5].lower()}"
    if not all(char in bytes_of for char in piece):
        return text
    return bytes(bytes_of[char] for char in piece).decode("utf-8", errors="backslashreplace")


def _piece(tokenizer: Any, token_id: int) -> str | None:
    """The vocabulary's own spelling of a token."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        piece: str | None = fast.id_to_token(token_id)
        return piece
    convert = getattr(tokenizer, "convert_ids_to_tokens", None)
    return convert(token_id) if convert is not None else None


def _byte_table() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for: printable Latin-1 bytes for themselves, the others,
    in order, for the characters from U+0100 on (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table
