"""Memory of devices: local GPUs and RPC servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.errors import ModelError
from edgespec.registry import GpuMemory
from edgespec_runtimes.gguf.llama import ggml, gpu, rpc

ANSWER_S = 20.0
"""Time limit of a server's answer: it may serve somebody else."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's memory in bytes, as reported by its library."""

    name: str
    """Name of the device; `HOST:PORT` for a server."""
    free_bytes: int
    total_bytes: int
    round_trip_s: float = 0.0


def memory_of_gpus() -> GpuMemory:
    """Memory of all GPUs that can get layers, together."""
    found = of_gpus()
    return GpuMemory(
        name=", ".join(gpu.name for gpu in found),
        total_bytes=sum(gpu.total_bytes for gpu in found),
        free_bytes=sum(gpu.free_bytes for gpu in found),
        reserved_bytes=0,
    )


def of_gpus() -> list[DeviceMemory]:
    """The GPUs that can get layers."""
    return [DeviceMemory(ggml.device_name(d), *ggml.memory_of(d)) for d in gpu.find_all()]


def of_servers(servers: Sequence[str]) -> list[DeviceMemory]:
    """The first device of each RPC server. Raises ModelError if one cannot be used."""
    if not rpc.is_supported():
        raise ModelError(rpc.MISSING)
    return [_of_server(server) for server in servers]


def _of_server(server: str) -> DeviceMemory:
    if rpc.is_connected(server):
        calls = rpc.ServerCalls([server])
        found = calls.run(lambda: ggml.memory_of(rpc.devices_of(server)[0]))
        calls.end()
        return DeviceMemory(server, *found)
    try:
        return DeviceMemory(server, *rpc.ask(server, ANSWER_S))
    except TimeoutError as error:
        raise ModelError(
            f"the RPC server {server} has not answered for {ANSWER_S:g} s: it serves one client at "
            "a time and may be busy with another, or a firewall drops what is sent: end the other "
            "client, start one more server there with another --port, or check the address"
        ) from error
    except OSError as error:
        raise ModelError(
            f"there is no RPC server of this version of llama.cpp at {server}: start `edgespec "
            "rpc-server` there with the same llama-cpp-python, and check the address and what "
            "stands between the machines"
        ) from error
