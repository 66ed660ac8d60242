"""Redirects llama.cpp's log from the terminal.

llama.cpp has one log hook per process. It is ours from the first use of the library on: messages go
to the logger `edgespec.llama_cpp` at level DEBUG.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgespec_runtimes.gguf.llama.bindings import lib

_logger = logging.getLogger("edgespec.llama_cpp")
_OF_EACH_NODE = b"llama_graph_n_input_tensors: "
"""Beginning of lines of which a plan has tens of thousands, and which only a debugger reads."""


class _Log:
    """The receiver of the library's messages, once in a process."""

    def __init__(self) -> None:
        self.captures: dict[int, list[str]] = {}
        """Messages of blocks that collect them."""
        self.receive = lib.llama_log_callback(self._receive)

    def _receive(self, level: int, text: bytes, _: Any) -> None:
        if text.startswith(_OF_EACH_NODE) and not _logger.isEnabledFor(logging.DEBUG):
            return
        line = text.decode(errors="replace")
        for lines in [*self.captures.values()]:
            lines.append(line)
        _logger.debug("%s", line.rstrip())


_log = functools.cache(_Log)


@contextmanager
def captured() -> Iterator[list[str]]:
    """Collect the messages of all threads in the block; sets the hook, which an application may
    have replaced."""
    lines: list[str] = []
    log = _log()
    lib.llama_log_set(log.receive, None)
    log.captures[id(lines)] = lines
    try:
        yield lines
    finally:
        del log.captures[id(lines)]


def complaint(lines: list[str]) -> str:
    """The most informative line of the log of a failure."""
    for line in reversed(lines):
        match = re.search(r"error loading model: (.*)", line)
        if match:
            return match.group(1).strip()
    errors = [line.strip() for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return errors[-1] if errors else "llama.cpp gave no reason"
