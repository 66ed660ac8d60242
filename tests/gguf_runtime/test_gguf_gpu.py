"""Copies to a GPU through ggml, to the CPU's device in its place: no GPU is needed."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

import pytest

from edgespec.errors import EdgespecError
from edgespec.runtimes import OffersGpu
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama import abi, ggml, gpu, loading

N_BYTES = 4096


@pytest.fixture
def cpu() -> int:
    loading.supports_gpu()  # starts the library
    device = ggml.device_of(ggml.CPU)
    assert device is not None
    return device


def test_the_runtime_offers_what_tuning_asks_for():
    assert isinstance(runtime, OffersGpu)


def test_without_a_gpu_there_is_nothing_to_copy_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu.loading, "supports_gpu", lambda: False)
    assert runtime.gpu() is None
    with pytest.raises(EdgespecError, match="finds no GPU"), runtime.copying(N_BYTES):
        pass


def test_a_device_has_a_name(cpu: int):
    assert ggml.device_name(cpu)


def test_a_device_that_is_there_is_named_and_copied_to(cpu: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu.loading, "supports_gpu", lambda: True)
    monkeypatch.setattr(gpu, "KINDS", (ggml.CPU,))
    assert runtime.gpu() == ggml.device_name(cpu)
    with runtime.copying(N_BYTES) as copy:
        copy()


def test_copies_arrive(cpu: int, monkeypatch: pytest.MonkeyPatch):
    """In the tensor that stands for weights, whole and again."""
    tensors = []
    place = ggml.place

    def noted(tensor: int, buffer: int, address: int) -> None:
        place(tensor, buffer, address)
        tensors.append(tensor)

    monkeypatch.setattr(ggml, "place", noted)
    with gpu.copying(cpu, N_BYTES) as copy:
        (tensor,) = tensors
        there = abi.GgmlTensor.from_address(tensor).data
        for _ in range(2):
            ctypes.memset(there, 0, N_BYTES)
            copy()
            assert ctypes.string_at(there, N_BYTES) == b"\1" * N_BYTES


def test_a_device_without_room_is_an_error(cpu: int):
    with ExitStack() as owned, pytest.raises(EdgespecError, match="has no room for"):
        ggml.new_buffer(owned, ggml.buffer_type_of(cpu), 1 << 60)
