"""The parser of the command line: commands, their flags and `--help` texts. It runs nothing.

Flags are spelled like llama.cpp's. Values stay text: `edgespec.settings` checks them, so that a
flag, a line of a TOML file and a Python argument get the same answer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

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
      run a model that is larger than its memory budget, without and with a draft model
  edgespec generate -p 'def read_lines(filename):' -n 64
      use the pair of models that comes with edgespec
  edgespec generate -m big.gguf -md small.gguf --memory-budget 4GiB -p 'Once upon a time'
      read the big model's weights from the disk, let the small model guess
  edgespec plan -m big.gguf -md small.gguf --memory-budget 4GiB
      show how the memory would be divided, without loading weights

exit codes: 0 success, 1 failure, 2 wrong usage, 3 unusable model, 4 impossible memory budget,
130 interrupted
The environment variable EDGESPEC_DEBUG=1 shows the traceback of an error."""

_GENERATE_EXAMPLES = """\
examples:
  edgespec generate -p 'def gcd(a, b):' -n 64
  git diff | edgespec generate -m big.gguf -md small.gguf -n 200
  edgespec generate -m big.gguf --memory-budget 50% -f prompt.txt --json > answer.json
  edgespec generate --config memory-8gb -m big.gguf -md small.gguf -p 'Hello' --temp 0.8 --seed 1

The text goes to stdout token by token, everything else to stderr. The draft never changes the text:
the same seed gives the same text with and without it."""

_PLAN_EXAMPLES = """\
examples:
  edgespec plan -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec plan -m big.gguf --memory-budget 2G -c 8192 --disk-bandwidth 300M --json

A budget that is too small ends with exit code 4 and the smallest budget that works."""


_DOCTOR_EXAMPLES = """\
examples:
  edgespec doctor
  edgespec doctor -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec doctor -m big.gguf --memory-budget 4GiB --tokens-per-pass 4

To measure a disk it writes at most 64 MiB. Models are measured for about half a minute, in a
process within the budget. With --tokens-per-pass no weights are loaded, and the prediction is what
storage allows: computing may take longer."""


_COMPLETION_EXAMPLES = """\
examples:
  edgespec completion bash > ~/.local/share/bash-completion/completions/edgespec
  edgespec completion zsh > ~/.zfunc/_edgespec     (a folder of $fpath)"""


GREETING = """\
edgespec runs a language model that does not fit in memory.

  edgespec demo                               see it work on models that come along
  edgespec generate -p 'def gcd(a, b):'       let them continue a text
  edgespec generate -m big.gguf -md small.gguf --memory-budget 4GiB -p 'Once upon a time'
  edgespec chat -hf USER/REPO:Q4_K_M          download a model and chat with it
  edgespec serve -m big.gguf -md small.gguf   run a server with OpenAI's API
  edgespec batch requests.jsonl answers.jsonl answer a file of requests
  edgespec --help                             list all commands
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
        raise UsageError(f"{message}; see {self.prog} --help")

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
        parser.error(f"no command given: choose one of {', '.join(commands)}")
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
        raise UsageError(f"{program} has no command {arguments[0]!r}{suggestion}")


def _refuse(argument: str, name: str, command: _Parser) -> NoReturn:
    if "--model" not in command.known_flags():
        command.error(f"unexpected argument {argument!r}")
    from edgespec.cli.flags import suggestions

    suggestion = suggestions.by_argument(argument, command.known_flags())
    raise UsageError(f"edgespec {name}: the argument {argument!r} needs a flag{suggestion}")


def _parsers() -> tuple[_Parser, dict[str, _Parser], dict[str, _Parser]]:
    """The whole parser, the parser of each command, and of each command of `models`."""
    parser = _Parser(
        prog="edgespec",
        description="Run a language model that does not fit in memory: its weights are read from\n"
        "disk within a memory budget, and each pass verifies many tokens that a draft guessed.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "--version", action="version", version=f"edgespec {extras.installed_version()}"
    )
    adder = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    grammars: dict[str, tuple[Callable[[_Parser], object], str]] = {
        "generate": (_generate, "continue a prompt"),
        "chat": (chat.add_to, "chat with a model in the terminal"),
        "completion": (_completion, "print a completion script for a shell"),
        "serve": (serve.add_to, "run an HTTP server with OpenAI's API"),
        "batch": (batch.add_to, "answer a file of requests in OpenAI's batch format"),
        "rpc-server": (rpc_server.add_to, "lend this machine's memory to a model on another"),
        "plan": (_plan, "show how memory would be divided; load nothing"),
        "demo": (_demo, "see it work with the models that come with edgespec"),
        "bench": (bench.add_to, "compare ways of decoding on this machine"),
        "tune": (tune.add_to, "find the fastest settings for a memory budget"),
        "doctor": (_doctor, "examine this machine, and what limits a pair on it"),
        "models": (models.add_to, "list, describe, download, compare and make models"),
    }
    commands = {name: adder.add_parser(name, help=text) for name, (_, text) in grammars.items()}
    added = {name: add_to(commands[name]) for name, (add_to, _) in grammars.items()}
    return parser, commands, cast("dict[str, _Parser]", added["models"])


def _generate(parser: _Parser) -> None:
    parser.description = "Continue a prompt."
    parser.epilog = _GENERATE_EXAMPLES
    prompt = parser.add_argument_group("prompt (or text piped to stdin)")
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the text to continue")
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a UTF-8 file")
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_context(parser)
    groups.add_sampling(parser)
    grammars.add_flags(parser)
    prompt_caches.add_flags(parser, keeps_text=False)
    groups.add_speculation(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write all figures and the text as a JSON object; without FILE, only that on stdout",
    )
    output.add_argument("--quiet", action="store_true", help="print no notes, progress or summary")
    output.add_argument(
        "--trace",
        metavar="FILE",
        help="record where time and memory go, for ui.perfetto.dev or chrome://tracing",
    )
    output.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        help="show guessed tokens in green (default: auto, which is in a terminal)",
    )


def _plan(parser: _Parser) -> None:
    parser.description = "Show how a memory budget would be divided, and the predicted speed."
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
        help="disk speed to predict with, in bytes per second like 300M, in decimal units as "
        "storage is sold (default: measured in a third of a second)",
    )
    groups.add_output(parser)


def _completion(parser: _Parser) -> None:
    parser.description = "Print a script that makes a shell complete edgespec's commands and flags."
    parser.epilog = _COMPLETION_EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh"))


def completion(shell: str) -> str:
    """The script for a shell. Raises UsageError where shtab, which writes it, is not installed."""
    with extras.needed("completion", "completion scripts need shtab"):
        import shtab
    return str(shtab.complete(_parsers()[0], shell))


def _doctor(parser: _Parser) -> None:
    parser.description = (
        "Examine this machine: cores, memory, disks and their speed, GPUs, libraries and the\n"
        "cache folder. With models, also measure what limits their speed and what would help."
    )
    parser.epilog = _DOCTOR_EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    parser.add_argument_group("prediction").add_argument(
        "--tokens-per-pass",
        metavar="X",
        help="tokens per pass, as `edgespec models check` measures them: predict from storage "
        "alone (default: measure the pair)",
    )
    groups.add_output(parser)


def _demo(parser: _Parser) -> None:
    parser.description = (
        "Complete a Python function with a model about twice as large as its memory budget,\n"
        "first alone, then with a draft. The model comes with edgespec and is enlarged once, to a\n"
        "file in the cache folder: it writes the same text, at the cost of its new size."
    )
    parser.add_argument(
        "--pair",
        metavar="NAME",
        help="embedded, or smollm2: a real model that is downloaded once (default: embedded)",
    )
    parser.add_argument(
        "--size", metavar="SIZE", help=f"size of the enlarged model (default: {DEMO_SIZE})"
    )
    parser.add_argument(
        "-n", "--n-predict", metavar="N", dest="max_tokens", help=f"tokens (default: {DEMO_TOKENS})"
    )
