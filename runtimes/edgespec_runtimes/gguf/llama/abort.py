"""A flag that makes llama.cpp abort a computation, without entering Python."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

from edgespec_runtimes.gguf.llama.bindings import lib


class AbortFlag(ctypes.Structure):
    """A flag that llama.cpp polls without entering Python.

    llama.cpp calls an abort callback `bool f(void *)` before every node. libc's strlen serves as
    one: it returns 0 for an empty string (continue) and 1 for one character (abort).
    """

    _fields_ = [("is_set", ctypes.c_bool), ("end", ctypes.c_char)]


@functools.cache
def abort_callback() -> Any:
    """The callback, which is given the address of a flag."""
    libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    address = ctypes.cast(libc.strlen, ctypes.c_void_p).value
    assert address is not None
    return lib.ggml_abort_callback(address)
