"""The entries through which a library calls a function are found by the function's whole name."""

from __future__ import annotations

import sys

import pytest

from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.imports import import_entries

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="entries are found on Linux only")


def is_found(*names: str) -> bool:
    return bool(import_entries(abi.library_path(), names))


def test_a_function_that_the_library_calls_is_found() -> None:
    assert is_found("ggml_mul_mat")


def test_one_that_it_does_not_call_is_not() -> None:
    assert not is_found("ggml_no_such_function")


def test_the_end_of_a_longer_name_is_not_that_name() -> None:
    assert not is_found("mul_mat")


def test_one_of_several_names_is_enough() -> None:
    assert is_found("ggml_no_such_function", "ggml_mul_mat")
