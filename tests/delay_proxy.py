"""A TCP proxy that delivers everything so much later, in both directions, as a network would."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

PIECE_BYTES = 1 << 18


@contextmanager
def delayed(address: str, delay_s: float) -> Iterator[str]:
    """The address of a proxy for `address`. `delay_s` is for a round trip; bandwidth is not
    limited."""
    host, _, port = address.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened = [listener]
        accepting = Thread(target=_accept, args=(opened, (host, int(port)), delay_s / 2))
        accepting.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for one in opened:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for one in opened:
                one.close()


def _accept(opened: list[socket.socket], there: tuple[str, int], delay_s: float) -> None:
    working = []
    with suppress(OSError):  # the listener was shut down
        while True:
            client, _ = opened[0].accept()
            server = socket.create_connection(there)
            opened += [client, server]
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                working += _pass_on(one, other, delay_s)
    for thread in working:
        thread.join()


def _pass_on(source: socket.socket, target: socket.socket, delay_s: float) -> list[Thread]:
    pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def receive() -> None:
        piece = b"-"
        while piece:
            try:
                piece = source.recv(PIECE_BYTES)
            except OSError:
                piece = b""
            pieces.put((time.monotonic() + delay_s, piece))

    def send() -> None:
        with suppress(OSError):
            while True:
                due, piece = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not piece:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(piece)

    threads = [Thread(target=work) for work in (receive, send)]
    for thread in threads:
        thread.start()
    return threads
