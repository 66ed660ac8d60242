"""GPUs as ggml lists them; without one an RPC server's device is in its place."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from edgespec.errors import EdgespecError, UsageError
from edgespec.models.embedded import embedded_pair
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama import ggml, gpu, rpc
from edgespec_runtimes.gguf.options import GgufOptions
from sentences import refuses


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggml, "gpus", list)


@pytest.mark.usefixtures("without_gpu")
def test_without_a_gpu_none_is_named():
    assert runtime.gpu() is None
    assert any("finds no GPU" in finding.says for finding in runtime.diagnose())


@pytest.mark.usefixtures("without_gpu")
def test_layers_for_a_gpu_that_is_not_there_are_refused():
    """They were placed in the process's memory, and were not counted."""
    options = GgufOptions(n_gpu_layers=99)
    with refuses(UsageError):
        runtime.prepare(
            ModelRequest(embedded_pair().target, "target", 256, 1, 1, 1, options=options)
        )


def test_a_device_that_is_there_is_named(gpu_device: int):
    name = ggml.device_name(gpu_device)
    assert runtime.gpu() == name
    assert any(name in finding.says for finding in runtime.diagnose())


def test_a_device_tells_its_memory(gpu_device: int):
    free, total = ggml.memory_of(gpu_device)
    assert 0 < free <= total


def test_a_server_of_another_machine_is_no_gpu_of_this_one(rpc_server: str):
    """A build with RPC says that it can place layers elsewhere, device or none."""
    (device,) = rpc.devices_of(rpc_server)
    assert device not in gpu.find_all()


def test_a_device_without_room_is_an_error(gpu_device: int):
    with ExitStack() as owned, refuses(EdgespecError):
        ggml.new_buffer(owned, ggml.buffer_type_of(gpu_device), 1 << 50)
