"""The entries through which a library calls a function are found by the function's whole name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.imports import import_entries

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="entries are found on Linux only")


@pytest.mark.parametrize(
    ("names", "is_found"),
    [
        (("ggml_mul_mat",), True),
        (("ggml_no_such_function",), False),
        (("mul_mat",), False),
        (("ggml_no_such_function", "ggml_mul_mat"), True),
    ],
    ids=["called", "not called", "the end of a longer name", "one of several"],
)
def test_a_function_that_the_library_calls_is_found(names: Sequence[str], is_found: bool) -> None:
    assert bool(import_entries(abi.library_path(), names)) == is_found
