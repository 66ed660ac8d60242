"""llama.cpp's RPC: devices of other machines, and a server for this machine's devices.

If a server is missing or dies, the library aborts the process that uses it, so `devices` first
queries it in a separate process. Knows no models.
"""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from collections.abc import Sequence

from edgespec.errors import EdgespecError
from edgespec_runtimes.gguf.llama import ggml

_REGISTRY = b"RPC"
_ADD_SERVER, _START_SERVER = b"ggml_backend_rpc_add_server", b"ggml_backend_rpc_start_server"


def is_supported() -> bool:
    """True if this build of llama.cpp has RPC."""
    return bool(ggml.function_of(_REGISTRY, _START_SERVER))


def devices_of(server: str) -> list[int]:
    """Connect to a server `HOST:PORT` and return the addresses of its devices.

    The process is aborted if there is no such server.
    """
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(_function(_ADD_SERVER))
    return ggml.devices_in(add(server.encode()) or 0)


_connections: Counter[str] = Counter()
"""Number of this process's models on each server."""


def is_connected(server: str) -> bool:
    """True if this process has a model on the server, which then serves no other process."""
    return _connections[server] > 0


def count(servers: Sequence[str], change: int) -> None:
    """Count a model that was placed on servers (1) or removed from them (-1)."""
    for server in servers:
        _connections[server] += change


def wait(server: str) -> None:
    """Wait until a connected server has completed all requests."""
    ggml.memory_of(devices_of(server)[0])


def serve(server: str, n_threads: int, devices: list[int]) -> None:
    """Serve devices at `HOST:PORT`, one client after the other, until the process ends.

    Returns only if the address cannot be used.
    """
    start = ctypes.CFUNCTYPE(
        None,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    )(_function(_START_SERVER))
    lent = (ctypes.c_void_p * len(devices))(*devices)
    start(server.encode(), None, n_threads, len(devices), lent)


@functools.cache
def _function(name: bytes) -> int:
    address = ggml.function_of(_REGISTRY, name)
    if not address:
        raise EdgespecError(MISSING)
    return address


MISSING = (
    "this llama-cpp-python was built without RPC: install it again with "
    "CMAKE_ARGS=-DGGML_RPC=ON pip install --force-reinstall --no-cache-dir llama-cpp-python"
)
