"""Runs a command, and turns whatever ends it into one line and an exit code.

A command is imported when it runs, so that `--help` needs no model library.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from importlib import import_module
from pathlib import Path

from edgespec.cli.console import Console, report_failure
from edgespec.cli.flags import parser
from edgespec.cli.interrupts import INTERRUPTED, Interrupts
from edgespec.errors import Cancelled, EdgespecError

SPIN_COUNT = "1000"
"""Turns in which a thread of llama.cpp waits for the others before it sleeps. GOMP's own default,
300,000, makes a pass ten times slower and more where another program wants the same cores; 1,000 is
not slower on an idle machine (decision 0070)."""

Command = Callable[[argparse.Namespace, Interrupts], int]
"""`run` of a module in `commands`, which is named like the command: returns the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `argv` (default: the process's own) and return the exit code."""
    is_whole_process = argv is None
    arguments = sys.argv[1:] if argv is None else list(argv)
    if is_whole_process:
        let_idle_threads_sleep(os.environ)
    interrupts = Interrupts()
    with interrupts.heard(until_the_end=is_whole_process):
        try:
            exit_code = _run(arguments, interrupts)
            return exit_code if _can_flush() else exit_code or 1
        except KeyboardInterrupt:  # while the last line was written
            return INTERRUPTED


def _run(arguments: Sequence[str], interrupts: Interrupts) -> int:
    wants_json = "--json" in arguments
    try:
        _prepare_streams()
        if not arguments:
            Console().write(parser.GREETING)
        args = parser.parse(arguments)
        if args.command == "completion":
            Console().write(parser.completion(args.shell))
            return 0
        command: Command = import_module(
            f"edgespec.cli.commands.{args.command.replace('-', '_')}"
        ).run
        return command(args, interrupts)
    except SystemExit as end:  # argparse, after --help and --version
        return int(end.code or 0)
    except BrokenPipeError:  # whoever read the text has seen enough
        return 1
    except (KeyboardInterrupt, Cancelled) as error:
        return report_failure(error, "interrupted", INTERRUPTED, wants_json)
    except (EdgespecError, OSError) as error:
        return report_failure(error, str(error), getattr(error, "exit_code", 1), wants_json)
    except Exception as error:  # noqa: BLE001 - the promise: one line, never a traceback
        message = f"unexpected {type(error).__name__}: {error} (EDGESPEC_DEBUG=1 shows where)"
        return report_failure(error, message, 1, wants_json)


def let_idle_threads_sleep(environ: MutableMapping[str, str]) -> None:
    """Let idle threads of OpenMP sleep soon, unless the user has chosen otherwise. The library
    reads the variable once, when a runtime loads it."""
    if not environ.get("OMP_WAIT_POLICY"):
        environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def _prepare_streams() -> None:
    """Show unencodable characters as question marks, and replace closed streams by os.devnull."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - lives as long as we
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - likewise
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _can_flush() -> bool:
    """True if both streams could be flushed; one that could not is redirected to os.devnull, since
    the interpreter flushes again at exit."""
    all_went_out = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            all_went_out = False
    return all_went_out
