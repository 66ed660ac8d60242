"""Output of the command line: text on stdout, notes and progress on stderr.

Knows terminals and colours; commands decide what to write and when.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TextIO

from edgespec.errors import BudgetError, EdgespecError, Sentence, marked
from edgespec.files.named_errors import named
from edgespec.reports import Report
from edgespec.settings.units import format_duration
from edgespec.values import TokenEvent

ColorMode = Literal["auto", "always", "never"]

PATIENCE_S = 1.0
"""Seconds after which a phase shows its progress."""
REDRAW_S = 0.1
REPEAT_S = 5.0
"""Seconds between progress lines that cannot be redrawn, as in a log file."""

USUAL_WIDTH = 80
"""Columns of a terminal that does not say how many it has."""
MIN_SHARE = 0.01
"""Share done from which on the remaining time is estimated."""

RESTARTED = 0.1
"""Share by which progress falls back where the same phase begins again; less is held."""

_GUESSED = "\x1b[32m"
_DIM = "\x1b[2m"
_PLAIN = "\x1b[0m"
CLEAR_REST = "\x1b[K"
"""Escape sequence that clears a terminal's line from the cursor on."""
_CLEAR_LINE = f"\r{CLEAR_REST}"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except newline and tab. Text of a model or its file is untrusted, and escape
sequences move the cursor, rename the window and write to the clipboard; some terminals accept
U+009B as the beginning of one."""


def wants_color(mode: ColorMode, stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """True if `stream` gets colours; `auto` respects NO_COLOR (no-color.org) and dumb terminals."""
    if mode != "auto":
        return mode == "always"
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class Console:
    """Writes to two streams that may share a terminal, and keeps progress out of the text."""

    def __init__(
        self,
        color: ColorMode = "auto",
        quiet: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = stdout or sys.stdout
        self._err = stderr or sys.stderr
        self._quiet = quiet
        self.color = wants_color(color, self._out)
        self._progress = _Progress(self._err, clock)
        self.doing = ("", 0.0)
        """The latest phase that progress was told of, and the share of it that is done."""
        self._midline = False
        """True if stdout is in the middle of a line of generated text."""

    def token(self, event: TokenEvent) -> None:
        """Write the text of an accepted token and flush."""
        self._show(event.text, _GUESSED if event.origin == "draft" else "")

    def say(self, text: str, is_aside: bool = False) -> None:
        """Write a part of an answer and flush; an aside is dim if there are colours."""
        self._show(text, _DIM if is_aside else "")

    def _show(self, text: str, style: str) -> None:
        """Write a part of a text, styled if there are colours."""
        text = self._cleaned(text)
        if not text:
            return
        self._progress.clear()
        self._out.write(f"{style}{text}{_PLAIN}" if self.color and style else text)
        self._out.flush()
        self._midline = not text.endswith("\n")

    def end_of_answer(self) -> None:
        """End the line of an answer, so that what follows starts a new line, in pipes too."""
        self._progress.clear()
        if self._midline:
            self._out.write("\n")
            self._midline = False
        self._out.flush()

    def end_of_text(self) -> None:
        """End the line of a text on a terminal; add nothing to a file or pipe."""
        if self._out.isatty():
            self.end_of_answer()

    @property
    def width(self) -> int | None:
        """Columns of the terminal that stdout is; None for a file or pipe."""
        return _width(self._out)

    def result(self, args: argparse.Namespace, report: Report) -> None:
        """Write a command's result, as JSON with --json, otherwise as text."""
        if "json" in args:
            content = report.as_dict()
            if "notes" in content:
                content |= {"notes": [_in_flags(note) for note in content["notes"]]}
            self._write(_as_json(content, self._out.encoding))
        else:
            self.write("\n".join(map(marked, report.lines(self.width))))

    def write(self, text: str) -> None:
        """Write a result, such as a table, on lines of its own."""
        self._write(_in_flags(text))

    def _write(self, text: str) -> None:
        self._progress.clear()
        text = self._cleaned(text)
        self._out.write(f"\n{text}\n" if self._midline else f"{text}\n")
        self._midline = False
        self._out.flush()

    def note(self, text: str) -> None:
        """Write a note to stderr, unless --quiet."""
        if not self._quiet:
            self.complain(text)

    def complain(self, text: str) -> None:
        """Write a message about a failure to stderr, even with --quiet."""
        self.log(_in_flags(text))

    def log(self, line: str) -> None:
        """Write a line to stderr as it is, however long, even with --quiet."""
        self._progress.clear()
        self._err.write(printable_on(self._err, line) + "\n")
        self._err.flush()

    def _cleaned(self, text: str) -> str:
        """`text` without control characters, unless it goes to a file or pipe without colours."""
        return printable(text) if self.color else printable_on(self._out, text)

    def progress(self, what: str, share: float) -> None:
        """Show progress if it takes longer than PATIENCE_S; implements `Progress` of the ports."""
        self.doing = what, share
        if not self._quiet:
            self._progress.show(what, share)

    def progress_with_rest(self, what: str, share: float | None, counts: str = "") -> None:
        """Show progress with the estimated remaining time, if the share is known, and `counts`."""
        self.doing = what, share or 0.0
        if not self._quiet:
            self._progress.show(what, share, with_rest=True, counts=counts)

    def end_of_progress(self) -> None:
        """Remove the progress line before something else writes to the terminal."""
        self._progress.clear()


class _Progress:
    """A progress line, redrawn on a terminal and repeated every REPEAT_S elsewhere."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._what = ""
        self._began_s = 0.0
        self._shown_s = 0.0
        self._on_screen = False
        self._share = 0.0
        """Largest share of this phase, which parts that are found late do not take back."""
        self._line = ""

    def show(
        self, what: str, share: float | None, with_rest: bool = False, counts: str = ""
    ) -> None:
        now = self._clock()
        if what != self._what or (share is not None and share < self._share - RESTARTED):
            self._what, self._began_s, self._shown_s = what, now, 0.0
            self._share, self._line = 0.0, ""
        is_terminal = self._stream.isatty()
        wait = REDRAW_S if is_terminal else REPEAT_S
        if share is not None:
            share = self._share = min(max(share, self._share), 1.0)
        if now - self._began_s < PATIENCE_S or now - self._shown_s < wait:
            return
        self._shown_s = now
        parts = []
        if share:
            parts.append(f"{100 * share:.0f}%")
            if with_rest and share >= MIN_SHARE:
                left_s = (now - self._began_s) * (1 - share) / share
                parts.append(f"about {format_duration(left_s)} left")
        parts += [counts] if counts else []
        line = f"{printable(what)}{': ' if parts else ' ...'}{', '.join(parts)}"
        if line == self._line and not is_terminal:
            return  # a log need not say it twice
        self._line = line
        if (width := _width(self._stream)) is not None:
            line = line[: width - 1]  # a line that wraps could not be drawn over
        # move the cursor back, so that a following error overwrites the line
        self._stream.write(f"{_CLEAR_LINE}{line}\r" if is_terminal else line + "\n")
        self._stream.flush()
        self._on_screen = is_terminal

    def clear(self) -> None:
        if self._on_screen:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._on_screen = False


STDOUT = "-"
"""Value of --json for stdout."""


def write_json(place: str, content: Mapping[str, Any]) -> None:
    """Write a JSON object on one line to stdout or to a file. Raises OSError and EdgespecError."""
    if place == STDOUT:
        print(_as_json(content, sys.stdout.encoding), flush=True)
    else:
        write_file(Path(place), _as_json(content) + "\n")


def write_file(path: Path, text: str) -> None:
    """Write a file, which stays as it was if that fails; devices and pipes are written to.

    Raises EdgespecError.
    """
    from edgespec.files.unfinished import unfinished_file  # slow to import

    content = text.encode()
    with named(f"{path} cannot be written", EdgespecError):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(content)
            return
        with unfinished_file(path) as file:
            file.write(content)


def _as_json(content: Mapping[str, Any], encoding: str | None = "utf-8") -> str:
    """`content` as JSON in one line; escaped where the encoding lacks a character, as it does those
    of paths that are not UTF-8."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(content, allow_nan=False)
    return text


def _in_flags(text: str) -> str:
    """A message with flags in place of the settings that it names."""
    sentence = Sentence(text)
    if sentence.marked == sentence:
        return text
    from edgespec.settings.base import in_flags  # with pydantic, which `--help` does without

    return in_flags(sentence)


def report_failure(
    error: BaseException, message: str, exit_code: int, json_place: str | None, **report: Any
) -> int:
    """Write an error to stderr, and with --json also to its place, with the rest of a `report`;
    returns the exit code."""
    if os.environ.get("EDGESPEC_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    message = _in_flags(message)
    details: dict[str, Any] = {
        "message": message,
        "type": type(error).__name__,
        "exit_code": exit_code,
    }
    if isinstance(error, BudgetError) and error.smallest_bytes is not None:
        details["smallest_bytes"] = error.smallest_bytes
    # a closed stream does not change the exit code
    with suppress(OSError, EdgespecError):
        if json_place is not None:
            write_json(json_place, {"error": details} | report)
    with suppress(OSError):
        rest_of_progress = CLEAR_REST if sys.stderr.isatty() else ""
        shown = printable_on(sys.stderr, message)
        print(f"edgespec: error: {shown}{rest_of_progress}", file=sys.stderr, flush=True)
    return exit_code


def _width(stream: TextIO) -> int | None:
    """Columns of a terminal, or those of COLUMNS; None for a file or pipe: lines stay whole."""
    if not stream.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except OSError:
        return USUAL_WIDTH


def printable(text: str) -> str:
    """`text` without control characters except newlines and tabs."""
    return _CONTROL.sub("", text)


def printable_on(stream: TextIO, text: str) -> str:
    """`printable(text)` for a terminal, the unchanged text for a file or pipe."""
    return printable(text) if stream.isatty() else text
