"""The `nbengine` command. What a subcommand needs is imported inside it, so that `nbengine --help` is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from nbengine import __version__
from nbengine.errors import NBEngineError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, or 1 after an error that the user can mend (one sentence on stderr);
    wrong usage exits with 2."""
    parser = argparse.ArgumentParser(prog="nbengine", description="A real LLM inference engine under glass.")
    parser.add_argument("--version", action="version", version=f"nbengine {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_add_pull, _add_models, _add_generate):
        add(commands)
    argv = sys.argv[1:] if argv is None else argv  # the options of these two are read from their modules, only if wanted
    _add_schedule_trace(commands, wanted="schedule-trace" in argv)
    _add_trace(commands, wanted="trace" in argv)
    args = parser.parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except NBEngineError as error:
        print(f"nbengine: {error}", file=sys.stderr)
    except OSError as error:
        print(f"nbengine: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
    except KeyboardInterrupt:
        print("nbengine: interrupted", file=sys.stderr)
    return 1


def _add_pull(commands: Any) -> None:
    parser = commands.add_parser("pull", help="fetch a model once and keep it; prints its local directory last")
    parser.add_argument("name", metavar="NAME", nargs="?", default="smollm2-135m", help="default: %(default)s")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_pull)


def _pull(args: argparse.Namespace) -> None:
    from nbengine.models.catalog import pull

    print(pull(args.name, progress=not args.quiet))


def _add_models(commands: Any) -> None:
    parser = commands.add_parser("models", help="list the named models")
    parser.set_defaults(run=_models)


def _models(args: argparse.Namespace) -> None:
    from nbengine.models.catalog import list_models

    for entry in list_models():
        where = str(entry.path) if entry.is_local else "not pulled yet"
        print(f"{entry.name:<16} {entry.title:<24} {entry.parameters / 1e6:>7,.0f} M  {entry.license:<12} {where}")


def _add_generate(commands: Any) -> None:
    parser = commands.add_parser("generate", help="continue a prompt, as it comes")
    parser.add_argument("prompt", metavar="PROMPT")
    parser.add_argument("--model", default="smollm2-135m", help="a name, directory, Hub id or GGUF file (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="at most so many tokens (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 = greedy (%(default)s)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--chat", action="store_true", help="PROMPT is a message to answer, not a text to continue")
    parser.set_defaults(run=_generate)


def _generate(args: argparse.Namespace) -> None:
    from nbengine.llm import LLM
    from nbengine.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(
        max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed, output_kind=RequestOutputKind.DELTA
    )
    with LLM(args.model) as llm:
        engine = llm.llm_engine
        messages = [{"role": "user", "content": args.prompt}]
        options = {"add_generation_prompt": True}
        prompt = engine.input_processor.parse_chat(messages, options) if args.chat else args.prompt
        engine.add_request("cli", prompt, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                print("".join(answer.text for answer in output.outputs), end="", flush=True)
    print()


def _add_schedule_trace(commands: Any, wanted: bool) -> None:
    parser = commands.add_parser("schedule-trace", help="run workload files through the scheduler and print its decisions")
    if wanted:
        from nbengine.workload import schedule_trace

        schedule_trace.add_arguments(parser)
        parser.set_defaults(run=schedule_trace.run)


def _add_trace(commands: Any, wanted: bool) -> None:
    parser = commands.add_parser("trace", help="look into, or convert, a recorded run")
    if wanted:
        from nbengine.debug import trace_cli

        trace_cli.add_arguments(parser)
        parser.set_defaults(run=trace_cli.run)


if __name__ == "__main__":
    sys.exit(main())
