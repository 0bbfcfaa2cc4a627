"""`nbengine trace info|convert|html|perfetto FILE`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nbengine.debug.trace import Trace
from nbengine.debug.trace_file import read_file
from nbengine.errors import NBEngineError

_SUFFIX = {"convert": ".nbtrace", "html": ".html", "perfetto": ".json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `nbengine trace`."""
    parser.add_argument(
        "action",
        choices=["info", "convert", "html", "perfetto"],
        help="info: what is in it; convert: write it anew, whole, without batch tensors; html: a page with the Lab in it; "
        "perfetto: Chrome trace JSON for ui.perfetto.dev",
    )
    parser.add_argument("file", type=Path, help="a .nbtrace file")
    parser.add_argument("-o", "--output", type=Path, default=None, help="where to (default: beside the file)")
    parser.add_argument("--tensors", action="store_true", help="convert: keep the batch tensors")


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status. One line on stderr says what went wrong."""
    try:
        trace = Trace(*read_file(args.file))
        if args.action == "info":
            sys.stdout.write(f"{trace}\n")
            return 0
        if trace.problem:
            sys.stderr.write(f"nbengine trace: {args.file}: {trace.problem}\n")
        target = args.output or _beside(args.file, args.action)
        if args.action == "convert":
            trace.save(target, tensors=args.tensors)
        elif args.action == "html":
            trace.to_html(target)
        else:
            trace.to_perfetto(target)
    except (NBEngineError, OSError) as error:
        sys.stderr.write(f"nbengine trace: {error}\n")
        return 1
    sys.stdout.write(f"{target}\n")
    return 0


def _beside(file: Path, action: str) -> Path:
    target = file.with_suffix(_SUFFIX[action])
    return target if target != file else file.with_name(f"{file.stem}-converted.nbtrace")
