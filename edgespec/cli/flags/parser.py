"""The parser of the command line: commands, their flags and `--help` texts. It runs nothing.

Flags are spelled like llama.cpp's. Values stay text: `edgespec.settings` checks them, so that a
flag, a line of a TOML file and a Python argument get the same answer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NoReturn

from edgespec import extras
from edgespec.cli.flags import (
    batch,
    bench,
    chat,
    grammars,
    groups,
    models,
    prompt_caches,
    rpc_server,
    serve,
    tune,
)
from edgespec.errors import UsageError
from edgespec.settings.base import nearest
from edgespec.settings.config import GenerateSettings

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

DEMO_SIZE = "512MiB"
DEMO_TOKENS = 40

_EXAMPLES = """\
examples:
  edgespec demo
      see a model that does not fit its memory budget answer, without and with a draft
  edgespec generate -p 'def read_lines(filename):' -n 64
      use the embedded pair of models
  edgespec generate -m big.gguf -md small.gguf --memory-budget 4GiB -p 'Once upon a time'
      page the big model in, let the small one guess
  edgespec plan -m big.gguf -md small.gguf --memory-budget 4GiB
      see who would get which bytes, without loading weights

exit codes: 0 done, 1 failed, 2 usage, 3 model, 4 memory budget, 130 interrupted
EDGESPEC_DEBUG=1 in the environment shows the traceback of an error."""

_GENERATE_EXAMPLES = """\
examples:
  edgespec generate -p 'def gcd(a, b):' -n 64
  git diff | edgespec generate -m big.gguf -md small.gguf -n 200
  edgespec generate -m big.gguf --memory-budget 50% -f prompt.txt --json > answer.json
  edgespec generate --config memory-8gb -m big.gguf -md small.gguf -p 'Hello' --temp 0.8 --seed 1

The text goes to stdout as it is accepted, everything else to stderr. The draft never changes the
text: same seed, same text, with and without it."""

_PLAN_EXAMPLES = """\
examples:
  edgespec plan -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec plan -m big.gguf --memory-budget 2G -c 8192 --disk-bandwidth 300M --json

A budget that cannot work ends with exit code 4 and names the smallest one that can."""


_DOCTOR_EXAMPLES = """\
examples:
  edgespec doctor
  edgespec doctor -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec doctor -m big.gguf --memory-budget 4GiB --tokens-per-pass 4

It writes at most 64 MiB, to measure a disk. Models are measured for half a minute or so, in
processes within the budget. With --tokens-per-pass no weights are loaded: what it predicts then is
what storage allows, and computing may take longer."""


_COMPLETION_EXAMPLES = """\
examples:
  edgespec completion bash > ~/.local/share/bash-completion/completions/edgespec
  edgespec completion zsh > ~/.zfunc/_edgespec     (a folder of $fpath)"""


GREETING = """\
edgespec runs a language model that does not fit in memory.

  edgespec demo                               see it work, on models that come along
  edgespec generate -p 'def gcd(a, b):'       let them continue a text
  edgespec generate -m big.gguf -md small.gguf --memory-budget 4GiB -p 'Once upon a time'
  edgespec chat -hf USER/REPO:Q4_K_M          fetch a model, and converse
  edgespec serve -m big.gguf -md small.gguf   answer OpenAI's protocol
  edgespec --help                             everything else
"""
"""Text shown without a command."""

_ELSEWHERE = {
    "-v": "--version shows the version",
    "-V": "--version shows the version",
    "-version": "--version shows the version",
    "-?": "--help shows the commands",
    "-help": "--help shows the commands",
}
"""Flags of other programs, and the equivalent here."""


class _Parser(argparse.ArgumentParser):
    """Answers mistakes with one UsageError instead of a page of usage."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help explains")

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Write the help; unlike argparse's own, it lets BrokenPipeError through."""
        (file or sys.stdout).write(self.format_help())

    def known_flags(self) -> list[str]:
        return list(self._option_string_actions)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The given arguments without defaults. Raises UsageError, and SystemExit after `--help`."""
    parser, commands, of_models = _parsers()
    _check_command(arguments, "edgespec", commands, of_models)
    if arguments[:1] == ["models"]:
        _check_command(arguments[1:], "edgespec models", of_models, {})
    args, unknown = parser.parse_known_args(arguments)
    if getattr(args, "command", None) is None:
        if unknown and unknown[0] in _ELSEWHERE:
            raise UsageError(f"unknown flag {unknown[0]}: {_ELSEWHERE[unknown[0]]}")
        parser.error(f"a command is missing: {', '.join(commands)}")
    if unknown:
        command = of_models[args.action] if "action" in args else commands[args.command]
        flag = unknown[0].partition("=")[0]
        if flag.startswith("-"):
            raise UsageError(f"unknown flag {flag}{nearest(flag, command.known_flags())}")
        _refuse(unknown[0], args.command, command)
    return args


def _check_command(
    arguments: Sequence[str],
    program: str,
    commands: Collection[str],
    of_models: Collection[str],
) -> None:
    """Raise UsageError if the first argument is neither a command nor a flag."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        from edgespec.cli.flags import suggestions

        suggestion = suggestions.by_command(arguments[0], commands, of_models)
        raise UsageError(f"there is no command {arguments[0]!r} of {program}{suggestion}")


def _refuse(argument: str, name: str, command: _Parser) -> NoReturn:
    if "--model" not in command.known_flags():
        command.error(f"unexpected argument {argument!r}")
    from edgespec.cli.flags import suggestions

    suggestion = suggestions.by_argument(argument, command.known_flags())
    raise UsageError(f"edgespec {name} takes no argument {argument!r} without a flag{suggestion}")


def installed_version() -> str:
    try:
        return version("edgespec")
    except PackageNotFoundError:  # a checkout on the path, never installed
        return "unknown"


def _parsers() -> tuple[_Parser, dict[str, _Parser], dict[str, _Parser]]:
    """The whole parser, the parser of each command, and of each command of `models`."""
    parser = _Parser(
        prog="edgespec",
        description="Run a language model that does not fit in memory: its weights are paged in "
        "under a\nbudget, and one pass over them checks many tokens that a small draft guessed.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"edgespec {installed_version()}")
    adder = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    commands = {
        "generate": _generate(adder.add_parser("generate", help="continue a prompt")),
        "chat": chat.add_to(adder.add_parser("chat", help="converse in the terminal")),
        "completion": _completion(
            adder.add_parser("completion", help="for a shell: complete flags")
        ),
        "serve": serve.add_to(
            adder.add_parser("serve", help="answer over HTTP, as OpenAI's API does")
        ),
        "batch": batch.add_to(
            adder.add_parser("batch", help="answer a file of requests, OpenAI's batch format")
        ),
        "rpc-server": rpc_server.add_to(
            adder.add_parser("rpc-server", help="lend this machine to a model on another")
        ),
        "plan": _plan(adder.add_parser("plan", help="say who gets which bytes; load nothing")),
        "demo": _demo(adder.add_parser("demo", help="see it work on the embedded models")),
        "bench": bench.add_to(adder.add_parser("bench", help="measure and compare, report")),
        "tune": tune.add_to(
            adder.add_parser("tune", help="find the best settings for a memory budget")
        ),
        "doctor": _doctor(adder.add_parser("doctor", help="say what this machine allows")),
        "models": adder.add_parser(
            "models", help="list, describe, fetch, compare and enlarge models"
        ),
    }
    return parser, commands, models.add_to(commands["models"])


def _generate(parser: _Parser) -> _Parser:
    parser.description = "Continue a prompt."
    parser.epilog = _GENERATE_EXAMPLES
    prompt = parser.add_argument_group("prompt (or text piped to stdin)")
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the text to continue")
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a UTF-8 file")
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_sampling(parser)
    grammars.add_flags(parser)
    prompt_caches.add_flags(parser, keeps_text=False)
    groups.add_speculation(parser)
    output = groups.add_output(parser)
    output.add_argument("--quiet", action="store_true", help="no notes, progress or summary")
    output.add_argument(
        "--trace",
        metavar="FILE",
        help="record where time and memory go; ui.perfetto.dev or chrome://tracing opens FILE",
    )
    output.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        help="show in colour which tokens the draft had guessed (default: auto, on a terminal)",
    )
    return parser


def _plan(parser: _Parser) -> _Parser:
    parser.description = "Say who would get which bytes under a memory budget."
    parser.epilog = _PLAN_EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_parallel(parser)
    guesses = parser.add_argument_group("draft")
    groups.add(guesses, GenerateSettings, draft_max="N")
    storage = parser.add_argument_group("storage")
    storage.add_argument(
        "--disk-bandwidth",
        metavar="RATE",
        help="bytes per second for the prediction, like 300M, in decimal units as storage is sold "
        "(default: measured, a third of a second)",
    )
    groups.add_output(parser)
    return parser


def _completion(parser: _Parser) -> _Parser:
    parser.description = "Print what makes a shell complete edgespec's commands and flags."
    parser.epilog = _COMPLETION_EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh"))
    return parser


def completion(shell: str) -> str:
    """The script for a shell. Raises UsageError where shtab, which writes it, is not installed."""
    with extras.needed("completion", "completion scripts need shtab"):
        import shtab
    return str(shtab.complete(_parsers()[0], shell))


def _doctor(parser: _Parser) -> _Parser:
    parser.description = (
        "Say what this machine has and what stands in the way: cores, memory, disks and their\n"
        "speed, GPUs, libraries, the cache folder. With models, also what limits them here and\n"
        "what would help most."
    )
    parser.epilog = _DOCTOR_EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    parser.add_argument_group("prediction").add_argument(
        "--tokens-per-pass",
        metavar="X",
        help="what a pass of the pair yields, as `edgespec models check` measures it: predict by "
        "storage alone (default: measure the pair)",
    )
    groups.add_output(parser)
    return parser


def _demo(parser: _Parser) -> _Parser:
    parser.description = (
        "Enlarge the embedded target once, to a file in the cache folder, and complete a Python\n"
        "function with it under a budget of about half of that file: first alone, then drafted.\n"
        "The enlarged model writes the same text as the small one, at the cost of its own size."
    )
    parser.add_argument("--size", metavar="SIZE", help=f"of the target (default: {DEMO_SIZE})")
    parser.add_argument(
        "-n", "--n-predict", metavar="N", dest="max_tokens", help=f"(default: {DEMO_TOKENS})"
    )
    return parser
