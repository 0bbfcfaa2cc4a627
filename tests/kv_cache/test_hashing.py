"""Block hashes: vLLM's vectors, what a hash covers, and canonical CBOR."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nbengine.errors import ConfigError
from nbengine.kv_cache.hashing import BlockHasher, CborHasher, canonical_cbor, extra_keys, make_hasher

VECTORS = json.loads((Path(__file__).parents[1] / "conformance" / "data" / "block_hashes.json").read_text())


@dataclass
class Content:
    token_ids: list[int]
    cache_salt: str | None = None
    lora_name: str | None = None


def hashes_of(hasher: BlockHasher, content: Content) -> list[bytes]:
    hashes: list[bytes] = []
    hasher.extend(content, hashes, len(content.token_ids) // hasher.block_size)
    return hashes


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_vllms_vectors(case: dict[str, Any]) -> None:
    hasher = CborHasher(case["block_size"], VECTORS["seed"])
    assert hasher.root.hex() == VECTORS["none_hash"]
    content = Content(case["prompt_token_ids"], case["cache_salt"], case["lora_name"])
    assert [block_hash.hex() for block_hash in hashes_of(hasher, content)] == case["block_hashes"]


@pytest.mark.parametrize("algo", ["sha256", "sha256_cbor"])
def test_a_hash_covers_all_that_its_block_depends_on(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    hasher = make_hasher(algo, 2)  # type: ignore[arg-type]
    plain = hashes_of(hasher, Content([1, 2, 3, 4, 5]))
    assert len(plain) == 2  # the half block has no name
    variants = [
        Content([9, 2, 3, 4]),  # another first block: the second one differs too
        Content([1, 2, 3, 4], cache_salt="s"),
        Content([1, 2, 3, 4], cache_salt="t"),
        Content([1, 2, 3, 4], lora_name="l"),
        Content([1, 2, 3, 4], lora_name="l", cache_salt="s"),
    ]
    names = [plain, *(hashes_of(hasher, variant) for variant in variants)]
    assert len({block_hash for row in names for block_hash in row}) == 2 * len(names)
    assert hashes_of(hasher, Content([1, 2, 9, 9]))[0] == plain[0]


def test_an_adapter_never_passes_for_a_salt() -> None:
    hasher = make_hasher("sha256", 2)
    assert hashes_of(hasher, Content([1, 2], "s")) != hashes_of(hasher, Content([1, 2], None, "s"))


@pytest.mark.parametrize("algo", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("content", [Content(list(range(16))), Content(list(range(16)), "salt", "lora")])
def test_extending_step_by_step_gives_the_same_names(algo: str, content: Content) -> None:
    hasher = make_hasher(algo, 4)  # type: ignore[arg-type]
    by_one: list[bytes] = []
    for num_blocks in range(5):
        hasher.extend(content, by_one, num_blocks)
    assert by_one == hashes_of(hasher, content) and len(by_one) == 4


def test_the_default_is_the_same_in_every_process_and_a_seedless_root_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    content = Content([1, 2])
    assert hashes_of(make_hasher("sha256", 2), content)[0].hex()[:16] == "36ce86f6bac731ba"
    assert hashes_of(make_hasher("sha256_cbor", 2), content) != hashes_of(make_hasher("sha256_cbor", 2), content)


def test_a_callers_function_gets_parent_tokens_and_extra_keys() -> None:
    calls = []

    def remember(parent: bytes | None, tokens: list[int], extra: tuple[Any, ...] | None) -> bytes:
        calls.append((parent, tokens, extra))
        return bytes([len(calls)])

    hashes_of(make_hasher(remember, 2), Content([1, 2, 3, 4], "salt", "lora"))
    assert calls == [(None, [1, 2], ("lora", "salt")), (b"\x01", [3, 4], ("lora",))]


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match='"sha256", "sha256_cbor" or a function, got \'md5\''):
        make_hasher("md5", 4)  # type: ignore[arg-type]


def test_no_extra_keys_is_null_not_an_empty_list() -> None:
    assert extra_keys(Content([1]), 0) is None
    assert extra_keys(Content([1], cache_salt="s"), 1) is None


@pytest.mark.parametrize(
    ("value", "encoded"),
    [  # RFC 8949, appendix A
        (None, "f6"),
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65536, "1a00010000"),
        (1 << 32, "1b0000000100000000"),
        (b"\x01\x02\x03\x04", "4401020304"),
        ("IETF", "6449455446"),
        ("\u6c34", "63e6b0b4"),
        ([1, [2, 3], None], "8301820203f6"),
    ],
)
def test_canonical_cbor(value: Any, encoded: str) -> None:
    assert canonical_cbor(value).hex() == encoded


def test_cbor_has_no_negative_or_huge_integers() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        canonical_cbor(1 << 64)
