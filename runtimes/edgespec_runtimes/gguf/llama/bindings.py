"""llama.cpp's functions as llama-cpp-python declares them, without the rest of that package.

The package's own code (chat formats, jinja2, a cache on sqlite) takes 5 MiB of every budget. Its
modules of declarations are therefore imported as submodules of this one; an application that
imports llama_cpp has modules of its own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import llama_cpp.llama_cpp as lib
    from llama_cpp import llama_cpp_ext

    __path__: list[str]

    __all__ = ["lib", "llama_cpp_ext"]
else:
    _found = find_spec("llama_cpp")
    if _found is None:
        raise ModuleNotFoundError("No module named 'llama_cpp'", name="llama_cpp")
    __path__ = list(_found.submodule_search_locations)

    _TYPES = "llama_cpp._ctypes_extensions"
    """The only module that the declarations import by its full name."""
    _types = import_module("._ctypes_extensions", __name__)
    _is_new = sys.modules.setdefault(_TYPES, _types) is _types
    try:
        lib = import_module(".llama_cpp", __name__)
        llama_cpp_ext = import_module(".llama_cpp_ext", __name__)
    finally:
        if _is_new:
            del sys.modules[_TYPES]
