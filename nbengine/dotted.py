"""Options that name a class: the class itself (from a notebook cell, say) or its dotted name."""

from __future__ import annotations

import importlib
from typing import Any, TypeVar

from nbengine.errors import ConfigError

T = TypeVar("T")


def find_class(choice: type[Any] | str, base: type[T], option: str) -> type[T]:
    """The class that `option` asks for. Raises ConfigError if it cannot be imported or is no subclass of `base`."""
    found: object = _import(choice, option) if isinstance(choice, str) else choice
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{option} must be a subclass of {base.__module__}.{base.__qualname__}, got {found!r}.")
    return found


def _import(name: str, option: str) -> object:
    module, _, attribute = name.rpartition(".")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{option}={name!r} cannot be imported: {error}") from error
    return found
