"""A flag that makes llama.cpp abort a computation, without entering Python."""

from __future__ import annotations

import ctypes
import functools
import sys

from edgespec_runtimes.gguf.llama.bindings import lib


class AbortFlag:
    """A flag that llama.cpp polls without entering Python.

    llama.cpp calls an abort callback `bool f(void *)` before every node. libc's strlen serves as
    one: it returns 0 for an empty string (continue) and 1 for one character (abort).
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(b"", 2)
        self.callback = lib.ggml_abort_callback(_pointer_to_strlen())
        self.address = ctypes.addressof(self._text)

    def set(self) -> None:
        self._text.value = b"x"

    def clear(self) -> None:
        self._text.value = b""

    def is_set(self) -> bool:
        return bool(self._text.value)


@functools.cache
def _pointer_to_strlen() -> int:
    libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    address = ctypes.cast(libc.strlen, ctypes.c_void_p).value
    assert address is not None
    return address
