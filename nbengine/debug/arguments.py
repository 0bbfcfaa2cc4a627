"""Arguments of a person at a prompt, checked before anything moves: each error says what was wanted and what came."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec

from nbengine.errors import ConfigError
from nbengine.observe.state import is_of
from nbengine.observe.view import EngineView


def whole(what: str, value: Any, least: int | None = 0) -> int:
    """`value` as a whole number. Raises TypeError (True and 1.0 are none), ValueError below `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} must be a whole number, got {value!r}.")
    number = int(value.__index__())
    if least is not None and number < least:
        raise ValueError(f"{what} must be at least {least}, got {number}.")
    return number


def option(struct: msgspec.Struct, name: str, value: Any) -> Any:
    """`value` as the type of the struct's field `name`. Raises ConfigError."""
    hint = get_type_hints(type(struct))[name]
    value = int(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value  # numpy's too
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name} cannot be {value!r}: {str(error)[:1].lower()}{str(error)[1:]}.") from error


def known_request(view: EngineView, request_id: str) -> str:
    """The id of a request that the view knows. Raises LookupError, which names those that it may be about."""
    if request_id in view.requests:
        return request_id
    answers = [name for name in view.requests if is_of(name, request_id)]
    if answers:
        raise LookupError(f"{request_id!r} asks for several answers, each a request here: {', '.join(answers)}.")
    raise LookupError(f"There is no request {request_id!r}; there are: {', '.join(view.requests) or 'none'}.")


def known_block(view: EngineView, block_id: int) -> int:
    """Raises LookupError for a block that the pool does not have."""
    if whole("block", block_id, least=None) not in range(len(view.owners)):
        raise LookupError(f"There is no block {block_id}: they go from 0 (reserved) to {len(view.owners) - 1}.")
    return block_id
