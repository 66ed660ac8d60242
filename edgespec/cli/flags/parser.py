"""The parser of the command line: commands and `--help`. Runs nothing.

A command's flags are added by its module in `commands`, which is imported when the command is used.
Flags are spelled like llama.cpp's. Values stay text: `edgespec.settings` validates them, so that
flags, TOML files and Python arguments are checked alike.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from edgespec import extras
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

COMMANDS = {
    "generate": "continue a prompt",
    "chat": "chat with a model in the terminal",
    "serve": "run an HTTP server with OpenAI's API",
    "batch": "answer a file of requests in OpenAI's batch format",
    "rpc-server": "lend this machine's memory to a model on another",
    "plan": "show how memory would be divided; load nothing",
    "demo": "see it work with the models that come with edgespec",
    "bench": "compare ways of decoding on this machine",
    "tune": "find the fastest settings for a pair and a budget",
    "doctor": "examine this machine",
    "models": "list, describe, download and make models",
}
"""Commands and their descriptions in `--help`."""
ALL = "*"
"""Stands for all commands."""
EVERYDAY = {
    *("model", "draft", "hf_repo", "no_draft", "memory_budget", "ctx_size", "threads", "config"),
    *("n_gpu_layers", "prompt", "file", "max_tokens", "temperature", "seed", "system"),
    *("json_schema", "host", "port", "api_key_file", "n_parallel", "what_if", "out", "json"),
}
"""Flags that `--help` shows of commands with more than MANY."""
MANY = 20

_EXAMPLES = """\
examples:
  edgespec demo
      run a model that is larger than its memory budget, without and with a draft model
  edgespec generate -p 'def read_lines(filename):' -n 64
      use the pair of models that comes with edgespec
  edgespec generate -m big.gguf -md small.gguf --memory-budget 4GiB -p 'Once upon a time'
      read the big model's weights from the disk, let the small model guess

exit codes: 0 success, 1 failure, 2 wrong usage, 3 unusable model, 4 impossible memory budget,
130 interrupted

The environment variable EDGESPEC_DEBUG=1 shows the traceback of an error."""

_FILE_FLAG = re.compile("--(chat-template|grammar|json-schema)-file$")  # llama.cpp's for @FILE
_NEGATIVE_NUMBER = re.compile(r"-\.?\d|-inf$|-nan$")
"""Beginning of a value that is no flag: argparse's own pattern knows no exponents."""
_TEXTS = frozenset({"TEXT", "JSON"})
"""Placeholders of values that are text, not names of files."""
_MAY_BE_EMPTY = frozenset({"prompt", "system", "stop"})
"""Arguments whose empty value means nothing, or is refused with better advice elsewhere."""


class _Help(argparse.Action):
    """Shows the flags of every day, or with --help-all all flags and the keys of files."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **more)

    def __call__(self, parser: argparse.ArgumentParser, args: Any, *others: Any) -> NoReturn:
        rare = [one for one in parser._actions if one.option_strings and one.dest not in _SHOWN]
        texts = [one.help for one in rare]
        is_short = "--help" in self.option_strings and len(parser._actions) > MANY
        for one in rare if is_short else ():
            one.help = argparse.SUPPRESS
        parser.print_help()
        for one, text in zip(rare, texts, strict=True):
            one.help = text
        if is_short:
            parser._print_message(f"\n{parser.prog} --help-all shows {len(rare)} more flags\n")
        elif "--help-all" in self.option_strings and "--config" in parser._option_string_actions:
            from edgespec.cli.flags.groups import keys_of_files  # with pydantic

            parser._print_message(keys_of_files())
        parser.exit()


_SHOWN = EVERYDAY | {argparse.SUPPRESS}


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of printing its usage."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(
            allow_abbrev=False, argument_default=argparse.SUPPRESS, add_help=False, **kwargs
        )
        self._negative_number_matcher = _NEGATIVE_NUMBER
        self.add_argument("-h", "--help", action=_Help, help="show the usual flags and exit")
        self.add_argument("--help-all", action=_Help, help="show all flags, and keys of files")

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            flag = message.removeprefix("argument ").partition(":")[0].rpartition("/")[2]
            message += f", and one that begins with - is written {flag}=-..."
        raise UsageError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Write the help or the version; unlike argparse's method, it does not suppress errors."""
        (file or sys.stdout).write(message)

    def known_flags(self) -> list[str]:
        return list(self._option_string_actions)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse arguments, without defaults. Raises UsageError, and SystemExit after `--help`."""
    for at in [n for n, one in enumerate(arguments[:-1]) if _FILE_FLAG.match(one)]:
        file = [arguments[at].removesuffix("-file"), f"@{arguments[at + 1]}"]
        arguments = [*arguments[:at], *file, *arguments[at + 2 :]]
    parser, commands, of_models = _parsers(arguments[0] if arguments else None)
    _check_command(arguments, "edgespec", commands)
    if arguments[:1] == ["models"]:
        _check_command(arguments[1:], "edgespec models", of_models)
        if not arguments[1:]:
            commands["models"].error(f"no command given: choose one of {', '.join(of_models)}")
    args, unknown = parser.parse_known_args(arguments)
    if getattr(args, "command", None) is None:
        if not arguments:
            parser.print_help()
        parser.error(f"no command given: choose one of {', '.join(commands)}")
    command = of_models[args.action] if "action" in args else commands[args.command]
    if unknown:
        flag = unknown[0].partition("=")[0]
        if flag.startswith("-"):
            raise UsageError(f"unknown flag {flag}{_nearest(flag, command.known_flags())}")
        _refuse(unknown[0], args.command, command)
    _check_values(args, command)
    return args


def _check_values(args: argparse.Namespace, command: _Parser) -> None:
    """Raise UsageError for empty values, and text that is not UTF-8, whatever the locale says."""
    for action in command._actions:
        given = getattr(args, action.dest, None)
        values = given if isinstance(given, list) else [given]
        name = max(action.option_strings, key=len, default=str(action.metavar))
        if "" in values and action.dest not in _MAY_BE_EMPTY:
            instead = ", or leave it out" if action.option_strings else ""
            raise UsageError(f"{name} is empty: give it a value{instead}")
        if action.metavar in _TEXTS and given is not None:
            texts = [_as_utf8(name, str(value)) for value in values]
            setattr(args, action.dest, texts if isinstance(given, list) else texts[0])


def _as_utf8(flag: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that the locale does not know stand here as surrogates
        try:
            return os.fsencode(text).decode()
        except UnicodeError as error:
            raise UsageError(f"{flag} is not UTF-8: convert it first") from error
    return text


def _check_command(arguments: Sequence[str], program: str, commands: Collection[str]) -> None:
    """Raise UsageError if the first argument is neither a command nor a flag."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        meant = _nearest(arguments[0], commands) or f": it is one of {', '.join(commands)}"
        raise UsageError(f"{program} has no command {arguments[0]!r}{meant}")


def _refuse(argument: str, name: str, command: _Parser) -> NoReturn:
    if "--model" not in command.known_flags():
        command.error(f"unexpected argument {argument!r}")
    raise UsageError(
        f"edgespec {name}: the argument {argument!r} needs a flag: -m names a model's file, -hf "
        "fetches USER/REPO from Hugging Face" + ", -p is a prompt" * ("-p" in command.known_flags())
    )


def _nearest(name: str, known: Iterable[str]) -> str:
    from edgespec.settings.base import nearest  # imports pydantic, which `--help` does without

    return nearest(name, known)


def command_module(name: str) -> Any:
    """The module of a command, with its flags (`add_to`) and what it does (`run`)."""
    return import_module(f"edgespec.cli.commands.{name.replace('-', '_')}")


def _parsers(chosen: str | None = ALL) -> tuple[_Parser, dict[str, _Parser], dict[str, _Parser]]:
    """The main parser, and the parsers by command and by command of `models`.

    The `chosen` command is the only one if there is such a command; with ALL, each gets its flags.
    """
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
    known = {chosen: COMMANDS[chosen]} if chosen in COMMANDS else COMMANDS
    commands = {name: adder.add_parser(name, help=text) for name, text in known.items()}
    of_models: dict[str, _Parser] = {}
    for name, command in commands.items():
        if chosen in (name, ALL):
            of_models = command_module(name).add_to(command) or of_models
    return parser, commands, of_models
