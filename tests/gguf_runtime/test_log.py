"""llama.cpp's log is edgespec's, whoever has taken it meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from edgespec.models.embedded import embedded_pair
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.bindings import lib

SHAPE = contexts.ContextShape(n_ctx=256, n_batch=32, n_outputs=1, n_branches=1, n_threads=1)


@lib.llama_log_callback
def _theirs(level: int, text: bytes, data: Any) -> None:
    pass


@pytest.fixture
def model() -> Iterator[loading.Model]:
    opened = loading.load_sizes_only(embedded_pair().target)
    yield opened
    opened.close()


def test_sizes_are_known_although_the_application_has_taken_the_log(model: loading.Model) -> None:
    """They were 0 then, and the budget was planned without a KV cache."""
    usual = contexts.context_sizes(model, SHAPE)
    lib.llama_log_set(_theirs, None)
    assert contexts.context_sizes(model, SHAPE) == usual
    assert usual.kv_bytes > 0


def test_what_drivers_say_as_the_library_starts_is_no_output_of_a_command(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Vulkan's backend told of its devices on stderr, in every command."""
    level = 2

    def starting() -> None:
        abi.ggml().ggml_log_internal(level, b"ggml_vulkan: Found 1 Vulkan devices:\n")

    monkeypatch.setattr(lib, "llama_backend_init", starting)
    with caplog.at_level(logging.DEBUG, "edgespec.llama_cpp"):
        loading.start.__wrapped__()
    assert "ggml_vulkan: Found 1" in caplog.text
