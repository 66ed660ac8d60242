"""Where the user's lines come from: a terminal with history and editing, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from edgespec import extras

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

COMMANDS = ("/system", "/reset", "/save", "/load", "/stats", "/help", "/exit")


def lines(history: Path, stdin: TextIO | None = None) -> Iterator[str]:
    """What the user writes, message by message, until there is no more. Raises UsageError, before
    the first is asked for, where a terminal needs what is not installed."""
    stdin = stdin or sys.stdin
    return _from_terminal(_session(history)) if stdin.isatty() else _from_pipe(stdin)


def _from_pipe(stdin: TextIO) -> Iterator[str]:
    """A message a line; a line that ends with a backslash goes on in the next."""
    held = ""
    for line in stdin:
        text = line.rstrip("\n")
        if text.endswith("\\"):
            held += text[:-1] + "\n"
        else:
            yield held + text
            held = ""
    if held:
        yield held


def _from_terminal(session: PromptSession[str]) -> Iterator[str]:
    """Enter sends, Alt+Enter breaks the line, Ctrl-C drops what is written, Ctrl-D ends."""
    while True:
        try:
            yield session.prompt("> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def _session(history: Path) -> PromptSession[str]:
    with extras.needed("chat", "a terminal to chat in needs prompt_toolkit"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    bindings = KeyBindings()

    def bind(*keys: str) -> Callable[[Callable[[KeyPressEvent], None]], object]:
        return bindings.add(*keys)

    @bind("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bind("escape", "enter")
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        history=FileHistory(str(history)),
        multiline=True,
        key_bindings=bindings,
        completer=WordCompleter(COMMANDS, sentence=True),
        complete_while_typing=False,
        prompt_continuation="  ",
    )
