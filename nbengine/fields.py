"""Checking the values that a person gave for the fields of a struct, against the fields' annotations."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from enum import EnumType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec


def check_types(struct: msgspec.Struct, names: Iterable[str], error: type[Exception]) -> None:
    """Raises `error`, with the field's name, for a value of another type. Values that mean the same are converted: an int
    for a float, a tuple for a list, a string for an enum's member, {"5": 1.0} for {5: 1.0}."""
    kinds = _kinds(type(struct))
    for name in names:
        value = getattr(struct, name)
        if hasattr(value, "tolist"):  # numpy's and torch's numbers and arrays
            value = value.tolist()
        try:
            setattr(struct, name, msgspec.convert(value, kinds[name], str_keys=True))
        except msgspec.ValidationError as reason:
            wanted = _wording(kinds[name], type(struct).__annotations__[name])
            raise error(f"{name} must be {wanted}, got {value!r} ({reason}).") from None


def _wording(kind: Any, annotation: str) -> str:
    choices = get_args(kind) if get_origin(kind) is Literal else list(kind) if isinstance(kind, EnumType) else ()
    return f"one of {', '.join(map(str, choices))}" if choices else annotation


@functools.cache
def _kinds(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(struct)
