"""Runs a command, and reports every failure as one line and an exit code.

Commands are imported when they run, so that `--help` needs no model library.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

from edgespec.cli.console import STDOUT, report_failure
from edgespec.cli.flags import parser
from edgespec.cli.interrupts import INTERRUPTED, Interrupts
from edgespec.concurrency.spinning import SHORT
from edgespec.errors import Cancelled, EdgespecError, marked

WITH_JSON_FILE = frozenset({"generate", "bench"})
"""Commands whose --json takes the name of a file."""

_OUTPUT_ERRORS = {
    errno.ENOSPC: "make room for it",
    errno.EBADF: "is stdout closed? send it to a file or to /dev/null",
}
"""Advice about errors of writing to stdout."""

Command = Callable[[argparse.Namespace, Interrupts], int]
"""Function `run` of the command's module in `commands`; returns the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return the exit code."""
    is_whole_process = argv is None
    arguments = sys.argv[1:] if argv is None else list(argv)
    if is_whole_process:
        set_up_libraries(os.environ)
    interrupts = Interrupts()
    with interrupts.heard(until_the_end=is_whole_process):
        try:
            exit_code = _run(arguments, interrupts)
            return exit_code if _can_flush() else exit_code or 1
        except KeyboardInterrupt:  # during the final flush
            return INTERRUPTED


def _run(arguments: Sequence[str], interrupts: Interrupts) -> int:
    place = json_place(arguments)
    try:
        _prepare_streams()
        args = parser.parse(arguments)
        command: Command = parser.command_module(args.command).run
        return command(args, interrupts)
    except SystemExit as end:  # argparse, after --help and --version
        return int(end.code or 0)
    except BrokenPipeError:  # the reader has closed the pipe
        return 1
    except (KeyboardInterrupt, Cancelled) as error:
        return report_failure(error, "interrupted", INTERRUPTED, place)
    except Exception as error:  # noqa: BLE001 - errors are one line, never a traceback
        # an interrupted import ends with an error of its own
        if interrupts.has_raised or isinstance(error.__cause__, KeyboardInterrupt):
            return report_failure(error, "interrupted", INTERRUPTED, place)
        return report_failure(error, _message(error), getattr(error, "exit_code", 1), place)


def _message(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "this process may have no more memory: raise its limit (ulimit -v), or free some"
    if not isinstance(error, EdgespecError | OSError):
        return f"unexpected {type(error).__name__}: {error} (EDGESPEC_DEBUG=1 shows where)"
    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
        advice = _OUTPUT_ERRORS[error.errno]
        return f"the output cannot be written: {error.strerror}: {advice}"
    return marked(error)


def json_place(arguments: Sequence[str]) -> str | None:
    """Place of --json for results and errors: a file, STDOUT, or None without the flag.

    It is read from the words themselves, since wrong arguments are errors, too.
    """
    for number, word in enumerate(arguments):
        if word.startswith("--json="):
            return word.removeprefix("--json=")
        if word == "--json":
            following = next(iter(arguments[number + 1 :]), STDOUT)
            takes_file = arguments[0] in WITH_JSON_FILE and not following.startswith("-")
            return following if takes_file else STDOUT
    return None


def set_up_libraries(environ: MutableMapping[str, str]) -> None:
    """Let idle OpenMP threads sleep soon, and failures of ggml end without a debugger, unless the
    user has configured that.

    GOMP reads the variable once, when a runtime loads it. Its default makes passes more than ten
    times slower if another program uses the same cores; the runtime lets threads of models in
    memory spin longer while it has the cores to itself.

    numpy starts a thread for each core, which spins for a tenth of a second, to multiply matrices:
    nothing here does.
    """
    if not environ.get("OMP_WAIT_POLICY"):
        environ.setdefault("GOMP_SPINCOUNT", str(SHORT))
    environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    environ.setdefault("GGML_NO_BACKTRACE", "1")


def _prepare_streams() -> None:
    """Show unencodable characters as question marks. Without stdout, writing to it fails; what
    would go to a closed stderr is dropped."""
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - open until exit
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _can_flush() -> bool:
    """Flush both streams; True if that succeeds.

    A stream that fails is redirected to os.devnull, because the interpreter flushes again at exit.
    """
    succeeded = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            succeeded = False
    return succeeded
