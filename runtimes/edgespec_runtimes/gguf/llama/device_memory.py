"""Queries the memory of devices: local GPUs and RPC servers.

Queries run in a separate process, `gguf.trials`, because a driver or a missing server may abort it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from edgespec.concurrency.exit_codes import exit_reason
from edgespec.concurrency.worker import Worker
from edgespec.errors import EdgespecError, ModelError
from edgespec.runtimes import GpuMemory
from edgespec_runtimes.gguf.llama import ggml, rpc, trial_process

ANSWER_S = 20.0
"""Time limit of a server's answer, counted by the process that asks: it may serve somebody else."""
START_S = 100.0
"""Time limit of the start of that process, or of a driver: 1.5 s on an idle machine, 20 s beside
twenty other programs."""
NO_ANSWER = 4
"""Exit code of the process that asked a server in vain."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's memory in bytes, as reported by its library."""

    name: str
    """Name of the device; `HOST:PORT` for a server."""
    free_bytes: int
    total_bytes: int
    round_trip_s: float = 0.0
    process_bytes: int = 0
    """Bytes of a process that is connected to it and has no model."""


def memory_of_gpus() -> GpuMemory:
    """Memory of all GPUs that can get layers, together. Raises EdgespecError."""
    found = of_gpus()
    return GpuMemory(
        name=", ".join(gpu.name for gpu in found),
        total_bytes=sum(gpu.total_bytes for gpu in found),
        free_bytes=sum(gpu.free_bytes for gpu in found),
        reserved_bytes=0,
    )


def of_gpus() -> list[DeviceMemory]:
    """The GPUs that can get layers. Raises EdgespecError if the query fails."""
    try:
        done = trial_process.run(trial_process.command("devices"), START_S)
    except trial_process.NoAnswer as error:
        raise EdgespecError(f"the GPU's memory is not known: {error}") from error
    if done.returncode:
        ended = exit_reason(done.returncode)
        raise EdgespecError(f"the GPU's memory is not known: {ended}")
    return _devices(done.stdout)


def of_servers(servers: Sequence[str]) -> list[DeviceMemory]:
    """The first device of each RPC server. Raises ModelError if one cannot be used."""
    if not rpc.is_supported():
        raise ModelError(rpc.MISSING)
    try:
        commands = [trial_process.command("server", s, str(ANSWER_S)) for s in servers]
    except trial_process.NoAnswer as error:
        raise ModelError(f"RPC servers cannot be tried: {error}") from error
    with ExitStack() as stack:
        asked = [
            stack.enter_context(Worker()).submit(partial(_of_server, server, command))
            for server, command in zip(servers, commands, strict=True)
        ]
        return [answer.result() for answer in asked]


def _of_server(server: str, command: Sequence[str]) -> DeviceMemory:
    if rpc.is_connected(server):
        return DeviceMemory(server, *ggml.memory_of(rpc.devices_of(server)[0]))
    try:
        done = trial_process.run(command, START_S + ANSWER_S)
    except trial_process.NoAnswer as error:
        raise ModelError(
            f"the RPC server {server} could not be asked ({error}): this machine may be too busy "
            "with other programs"
        ) from error
    if not done.returncode:
        return _devices(done.stdout)[0]
    if done.returncode == NO_ANSWER:
        raise ModelError(
            f"the RPC server {server} has not answered for {ANSWER_S:g} s: it serves one client at "
            "a time and may be busy with another, or a firewall drops what is sent: end the other "
            "client, start one more server there with another --port, or check the address"
        )
    raise ModelError(
        f"there is no RPC server of this version of llama.cpp at {server}: start `edgespec "
        "rpc-server` there with the same llama-cpp-python, and check the address and what stands "
        "between the machines"
    )


def _devices(answer: bytes) -> list[DeviceMemory]:
    process_bytes, found = json.loads(answer)
    return [
        DeviceMemory(name, free_bytes, total_bytes, round_trip_s, process_bytes)
        for name, free_bytes, total_bytes, round_trip_s in found
    ]
