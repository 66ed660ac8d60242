"""llama.cpp's log, kept off the application's terminal while edgespec uses the library.

The hook is one per process. It is taken when the first of edgespec's models opens, put back when the
last one closes, and hands everything to the logger `edgespec.llama_cpp` at level DEBUG.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llama_cpp.llama_cpp as lib

_logger = logging.getLogger("edgespec.llama_cpp")
_lock = threading.RLock()
_users = 0
_previous: tuple[Any, Any] | None = None
_captures: list[list[str]] = []


@lib.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
def _receive(level: int, text: bytes, _: Any) -> None:
    line = text.decode(errors="replace")
    for lines in list(_captures):
        lines.append(line)
    _logger.debug("%s", line.rstrip())


def take() -> None:
    """Redirect the log until as many calls of `give_back` were made."""
    global _users, _previous
    with _lock:
        _users += 1
        if _users == 1:
            callback, user_data = lib.llama_log_callback(), ctypes.c_void_p()
            lib.llama_log_get(ctypes.byref(callback), ctypes.byref(user_data))
            _previous = callback, user_data
            lib.llama_log_set(_receive, None)


def give_back() -> None:
    global _users, _previous
    with _lock:
        _users -= 1
        if _users == 0 and _previous is not None:
            lib.llama_log_set(*_previous)
            _previous = None


@contextmanager
def captured() -> Iterator[list[str]]:
    """Collects what is logged meanwhile, by whichever thread."""
    lines: list[str] = []
    take()
    _captures.append(lines)
    try:
        yield lines
    finally:
        _captures[:] = [other for other in _captures if other is not lines]
        give_back()
