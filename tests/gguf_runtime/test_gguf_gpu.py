"""GPUs as ggml lists them, with the CPU's device in the place of one: no GPU is needed."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from edgespec.errors import EdgespecError
from edgespec.runtimes import OffersGpu
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama import ggml, gpu, loading


@pytest.fixture
def cpu() -> int:
    loading.supports_gpu()  # starts the library
    device = ggml.device_of(ggml.CPU)
    assert device is not None
    return device


def test_the_runtime_offers_what_tuning_asks_for():
    assert isinstance(runtime, OffersGpu)


def test_without_a_gpu_none_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu.loading, "supports_gpu", lambda: False)
    assert runtime.gpu() is None


def test_a_device_has_a_name(cpu: int):
    assert ggml.device_name(cpu)


def test_a_device_that_is_there_is_named(cpu: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu.loading, "supports_gpu", lambda: True)
    monkeypatch.setattr(gpu, "KINDS", (ggml.CPU,))
    assert runtime.gpu() == ggml.device_name(cpu)


def test_a_device_without_room_is_an_error(cpu: int):
    with ExitStack() as owned, pytest.raises(EdgespecError, match="has no room for"):
        ggml.new_buffer(owned, ggml.buffer_type_of(cpu), 1 << 60)
