"""A moment as JSON, for a bug report: written by one person, loaded by another."""

from __future__ import annotations

import msgspec

from nbengine.errors import TraceError
from nbengine.observe.records import SCHEMA_VERSION, Header, Keyframe
from nbengine.observe.view import EngineView


class Dump(msgspec.Struct):
    header: Header
    keyframe: Keyframe


def dumps(view: EngineView) -> str:
    """The view as JSON text."""
    return msgspec.json.format(msgspec.json.encode(Dump(view.header, view.keyframe()))).decode()


def loads(text: str) -> EngineView:
    """The view that `dumps` wrote. Raises TraceError for anything else."""
    try:
        dump = msgspec.json.decode(text, type=Dump)
    except msgspec.DecodeError as error:
        raise TraceError(f"This is no nbengine dump: {error}.") from error
    if dump.header.version > SCHEMA_VERSION:
        raise TraceError(
            f"This dump has schema version {dump.header.version}, and this nbengine reads up to {SCHEMA_VERSION}."
        )
    return EngineView.from_keyframe(dump.header, dump.keyframe)
