"""llama.cpp's RPC: devices of other machines, and a server for this machine's devices.

If a server is missing or dies, the library aborts the process that uses it: servers are asked
through a socket first, and used by `ServerCalls`. Knows no models.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from edgespec.concurrency.owning import POLL_S
from edgespec.concurrency.worker import fulfil
from edgespec.errors import EdgespecError, ModelError, TargetLost
from edgespec_runtimes.gguf.llama import abi, ggml

T = TypeVar("T")

_ADD_SERVER, _START_SERVER = b"ggml_backend_rpc_add_server", b"ggml_backend_rpc_start_server"
_HELLO, _DEVICE_MEMORY, _PROTOCOL = 14, 11, 7
"""`RPC_CMD_HELLO`, `RPC_CMD_GET_DEVICE_MEMORY` and `RPC_PROTO_MAJOR_VERSION`."""
_CAPABILITIES_BYTES, _MOST_BYTES = 24, 256
_N_QUESTIONS = 3
ANSWER_S = 20.0
"""Time limit of a server's answer: it may serve somebody else."""


def is_supported() -> bool:
    """True if this build of llama.cpp has RPC."""
    return bool(_address_of(_START_SERVER))


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Memory of a server's first device in bytes, as reported by its library."""

    name: str
    """`HOST:PORT`."""
    free_bytes: int
    round_trip_s: float = 0.0


def memory_of(servers: Sequence[str]) -> list[ServerMemory]:
    """Memory of each of the servers `HOST:PORT`. Raises ModelError if one cannot be used."""
    if not is_supported():
        raise ModelError(MISSING)
    return [_memory_of(server) for server in servers]


def _memory_of(server: str) -> ServerMemory:
    try:
        return ServerMemory(server, *_ask(server, ANSWER_S))
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


def _ask(server: str, timeout_s: float) -> tuple[int, float]:
    """Free bytes of the first device of a server, and the seconds of a round trip.

    Raises TimeoutError, and OSError for what is no server of this version.
    """
    import socket  # here: it takes memory of the budget

    host, _, port = server.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout_s) as connection,
        connection.makefile("rb") as answers,
    ):

        def answer(command: int, content: bytes) -> bytes:
            connection.sendall(struct.pack("<BQ", command, len(content)) + content)
            size = answers.read(8)
            nbytes = int.from_bytes(size, "little")
            found = answers.read(nbytes) if nbytes <= _MOST_BYTES else b""
            if not found or len(found) < nbytes:
                raise ConnectionError("that is no answer of a server")
            return found

        if answer(_HELLO, bytes(_CAPABILITIES_BYTES))[0] != _PROTOCOL:
            raise ConnectionError("the server has another version")
        seconds = []
        for _ in range(_N_QUESTIONS):
            began = time.perf_counter()
            found = answer(_DEVICE_MEMORY, bytes(4))
            seconds.append(time.perf_counter() - began)
        return int.from_bytes(found[:8], "little"), min(seconds)


def devices_of(server: str) -> list[int]:
    """Connect to a server `HOST:PORT` and return the addresses of its devices.

    The process is aborted if there is no such server, but where `ServerCalls` are made.
    """
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(_function(_ADD_SERVER))
    if not (registry := add(server.encode())):
        return []
    n_devices = int(ggml.call(ctypes.c_size_t, "ggml_backend_reg_dev_count", registry))
    device = partial(ggml.pointer, "ggml_backend_reg_dev_get", registry)
    return [device(ctypes.c_size_t(n)) for n in range(n_devices)]


def wait_for(server: str) -> None:
    """Wait until a connected server has completed all requests."""
    ggml.memory_of(devices_of(server)[0])


class ServerCalls:
    """Makes calls that need servers, one after the other in a thread of its own.

    When a server is lost, llama.cpp aborts in one of its threads. That thread waits for ever then,
    with all that the library holds, and so may ours; the running call and all later ones raise
    TargetLost, also those to a new server at this address.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        callers, _ = _callers()  # the library waits for lost ones even if their address has others
        self.is_lost: bool = any(one.is_lost and {*servers} & {*one._servers} for one in callers)
        callers.append(self)
        threading.Thread(target=self._work, name="edgespec-servers", daemon=True).start()

    def run(self, call: Callable[[], T]) -> T:
        """The result of a call. Raises what it raises, and TargetLost."""
        future: Future[T] = Future()
        if not self.is_lost:
            self._queue.put((future, call))
        while not self.is_lost:
            if wait([future], timeout=POLL_S).done:
                return future.result()
        lost = "one of the RPC servers" if len(self._servers) > 1 else "the RPC server"
        raise TargetLost(
            f"{lost} {', '.join(self._servers)} was lost, and with it the target: see whether the "
            "server still runs, start it again, and then this program, too"
        )

    def end(self) -> None:
        """End the thread after the calls that it has."""
        if not self.is_lost:  # otherwise other threads of the library may notice it later
            _callers()[0].remove(self)
        self._queue.put(None)

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            fulfil(*asked)
            del asked


@functools.cache
def _callers() -> tuple[list[ServerCalls], object]:
    """All that make calls, and the function that llama.cpp calls before it aborts the process."""
    callers: list[ServerCalls] = []

    def aborting(message: bytes) -> None:
        if b"ggml-rpc" in message:
            for calls in callers:
                calls.is_lost = True
            while callers:
                threading.Event().wait()
        os.write(2, message + b"\n")

    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(aborting)
    abi.ggml().ggml_set_abort_callback(callback)
    return callers, callback


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


def _function(name: bytes) -> int:
    if not (address := _address_of(name)):
        raise EdgespecError(MISSING)
    return address


@functools.cache
def _address_of(name: bytes) -> int:
    """Address of one of the backend's functions; 0 if there is none."""
    found = ggml.pointer("ggml_backend_reg_by_name", b"RPC")
    return ggml.pointer("ggml_backend_reg_get_proc_address", found, name) if found else 0


MISSING = (
    "this llama-cpp-python was built without RPC: install it again with "
    "CMAKE_ARGS=-DGGML_RPC=ON pip install --force-reinstall --no-cache-dir llama-cpp-python"
)
