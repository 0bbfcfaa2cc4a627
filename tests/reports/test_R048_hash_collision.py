"""R048: a block is reused for its content, not for its name. With a hash function that always collides, every false hit is
found, counted and treated as a miss; the stock SHA-256 covers tokens, parent, adapter and salt, so names are contents."""

from __future__ import annotations

from typing import Any

from tests.scheduler.desk import Desk


def constant(parent: bytes | None, tokens: list[int], extra: tuple[Any, ...] | None) -> bytes:
    return b"always the same"


def test_a_constant_hash_gives_no_false_hit() -> None:
    desk = Desk(prefix_caching_hash_algo=constant)
    desk.add("a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    desk.step()
    desk.add("b", [9, 9, 9, 9, 5, 6, 7, 8, 9])
    desk.step()
    assert desk.cached == {"a": 0, "b": 0} and desk.scheduler.kv.num_collisions == 1


def test_true_hits_are_still_hits() -> None:
    desk = Desk(prefix_caching_hash_algo=constant)
    desk.add("a", [1, 2, 3, 4, 5])
    desk.step()
    desk.add("b", [1, 2, 3, 4, 5])
    desk.step()
    assert desk.cached == {"a": 0, "b": 4} and desk.scheduler.kv.num_collisions == 0


def test_an_adapter_and_a_salt_are_content() -> None:
    desk = Desk(prefix_caching_hash_algo=constant)
    prompt = [1, 2, 3, 4, 5]
    desk.add("a", prompt)
    desk.step()
    desk.add("b", prompt, cache_salt="x")
    desk.add("c", prompt, lora_id=1, lora_name="x")
    desk.step()
    assert desk.cached == {"a": 0, "b": 0, "c": 0} and desk.scheduler.kv.num_collisions == 2


def test_equal_second_blocks_after_different_first_ones_never_match() -> None:
    desk = Desk()
    desk.add("a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    desk.add("b", [9, 2, 3, 4, 5, 6, 7, 8, 9])
    desk.step()
    assert desk.cached == {"a": 0, "b": 0}
