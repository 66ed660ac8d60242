"""Redirects llama.cpp's log from the terminal while edgespec uses the library.

llama.cpp has one log hook per process. It is set when edgespec's first model opens and restored
when the last one closes; messages go to the logger `edgespec.llama_cpp` at level DEBUG.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgespec_runtimes.gguf.llama.bindings import lib

_logger = logging.getLogger("edgespec.llama_cpp")
_OF_EACH_NODE = b"llama_graph_n_input_tensors: "
"""Beginning of lines of which a plan has tens of thousands, and which only a debugger reads."""


class _Hook:
    """Counts the users of the hook, and remembers the previous one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._previous: tuple[Any, Any] = (None, None)
        self._callback = lib.llama_log_callback(self._receive)
        self.captures: tuple[list[str], ...] = ()

    def take(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._previous = _current()
                lib.llama_log_set(self._callback, None)

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                lib.llama_log_set(*self._previous)

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """Collect the messages of all threads in the block; sets the hook again if the application
        has replaced it."""
        lines: list[str] = []
        self.take()
        with self._lock:
            previous = _current()
            lib.llama_log_set(self._callback, None)
            self.captures = (*self.captures, lines)
        try:
            yield lines
        finally:
            with self._lock:
                self.captures = tuple(other for other in self.captures if other is not lines)
                if not self.captures:
                    lib.llama_log_set(*previous)
            self.give_back()

    def _receive(self, level: int, text: bytes, _: Any) -> None:
        if text.startswith(_OF_EACH_NODE) and not _logger.isEnabledFor(logging.DEBUG):
            return
        line = text.decode(errors="replace")
        for lines in self.captures:
            lines.append(line)
        _logger.debug("%s", line.rstrip())


_hook = _Hook()
take = _hook.take
give_back = _hook.give_back
captured = _hook.captured


def complaint(lines: list[str]) -> str:
    """The most informative line of the log of a failure."""
    for line in reversed(lines):
        match = re.search(r"error loading model: (.*)", line)
        if match:
            return match.group(1).strip()
    errors = [line.strip() for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return errors[-1] if errors else "llama.cpp gave no reason"


def _current() -> tuple[Any, Any]:
    """The current hook and its user data."""
    callback, user_data = lib.llama_log_callback(), ctypes.c_void_p()
    lib.llama_log_get(ctypes.byref(callback), ctypes.byref(user_data))
    return callback, user_data
