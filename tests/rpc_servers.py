"""RPC servers on this machine: real devices, with memory and an address space of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edgespec.registry import GpuMemory
from edgespec_runtimes.gguf.llama import ggml, gpu, rpc

START_S = 30.0

needs_rpc = pytest.mark.skipif(
    not rpc.is_supported(), reason=f"no device to test with: {rpc.MISSING}"
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def running(
    budget: str = "400MiB", host: str = "127.0.0.1", port: int = 0
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of `edgespec rpc-server`: its address and its process, which is ended."""
    port = port or free_port()
    command = [sys.executable, "-m", "edgespec", "rpc-server", "--host", host]
    command += ["--port", str(port), "-t", "1"]
    server = subprocess.Popen(
        [*command, "--memory-budget", budget], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, server.stderr
                time.sleep(0.05)
        yield f"127.0.0.1:{port}", server
    finally:
        server.kill()
        server.communicate()


def use_as_gpu(patch: pytest.MonkeyPatch, server: str) -> int:
    """Have llama.cpp take a server's device for a local GPU; its address."""
    (device,) = rpc.devices_of(server)
    patch.setattr(ggml, "gpus", lambda: [device])
    free_bytes, total_bytes = ggml.memory_of(device)
    patch.setattr(gpu, "memory", lambda: GpuMemory(server, total_bytes, free_bytes, 0))
    return device
