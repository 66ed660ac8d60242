"""The user's messages: from a terminal with history and editing, or from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from edgespec import extras
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.named_errors import named
from edgespec.files.unfinished import PRIVATE_MODE

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

MAX_MESSAGE_BYTES = 4 << 20
COMMANDS = ("/system", "/reset", "/save", "/load", "/stats", "/help", "/exit")
ENDINGS = ("/exit", "/bye", "exit")
HOW_TO_END = "Ctrl-D or /exit ends the conversation"


def is_terminal(stdin: TextIO | None) -> bool:
    """True if messages are typed; `stdin` is None if it is closed."""
    return stdin is not None and stdin.isatty()


def lines(history: Path | None, stdin: TextIO | None = None) -> Iterator[str]:
    """The user's messages until the input ends; those of a terminal are kept in `history`.

    Raises UsageError at once if stdin is closed, or if prompt_toolkit is needed and not installed.
    """
    stdin = stdin or sys.stdin
    if stdin is None:
        raise UsageError("stdin is closed: chat in a terminal, or pipe messages to stdin")
    return _from_terminal(_session(history)) if stdin.isatty() else _from_pipe(stdin.buffer)


def _from_pipe(stdin: BinaryIO) -> Iterator[str]:
    """One message per line; a backslash at its end continues it on the next line.

    Raises UsageError for a message that is too long or not UTF-8.
    """
    held = b""
    while line := stdin.readline(MAX_MESSAGE_BYTES + 1):
        held += line.rstrip(b"\r\n")
        if len(held) > MAX_MESSAGE_BYTES:
            raise UsageError(
                f"a message of stdin has more than {MAX_MESSAGE_BYTES >> 20} MiB: a message a line "
                "is expected"
            )
        if held.endswith(b"\\"):
            held = held[:-1] + b"\n"
        else:
            yield _decoded(held)
            held = b""
    if held:
        yield _decoded(held)


def _decoded(message: bytes) -> str:
    with named("stdin"):
        return message.decode("utf-8-sig")


def _from_terminal(session: PromptSession[str]) -> Iterator[str]:
    """Messages typed in a terminal: Enter sends, Alt+Enter starts a new line, Ctrl-C discards the
    input, or says on an empty line that Ctrl-D ends."""
    while True:
        try:
            yield session.prompt("> ")
        except KeyboardInterrupt:
            if not session.default_buffer.text:
                print(HOW_TO_END, file=sys.stderr, flush=True)
        except EOFError:
            return


def make_private(history: Path) -> None:
    """Make the history file readable only by its owner."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with named(f"{history} cannot be written", EdgespecError):
        descriptor = os.open(history, flags, PRIVATE_MODE)
        try:
            if hasattr(os, "fchmod"):  # not on Windows
                os.fchmod(descriptor, PRIVATE_MODE)
        finally:
            os.close(descriptor)


def _session(history: Path | None) -> PromptSession[str]:
    with extras.needed("chat", "a terminal to chat in needs prompt_toolkit"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
        from prompt_toolkit.output import create_output
    bindings = KeyBindings()

    class History(FileHistory):
        def store_string(self, string: str) -> None:
            with suppress(OSError):  # a full disk
                super().store_string(string)

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    # where answers go to a file, what is typed is shown on stderr
    is_shown = sys.stdout is not None and sys.stdout.isatty()
    return PromptSession(
        output=None if is_shown else create_output(always_prefer_tty=True),
        history=None if history is None else History(str(history)),
        multiline=True,
        key_bindings=bindings,
        completer=WordCompleter(COMMANDS, sentence=True),
        complete_while_typing=False,
        prompt_continuation="  ",
    )
