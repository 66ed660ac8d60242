"""The program of `isolation`: loads one model and answers calls until nobody calls any more."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from threading import Thread
from typing import Any

import numpy as np

from edgespec.errors import EdgespecError
from edgespec.ports import LanguageModel
from edgespec.ports.state import KeepsState
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.isolation import (
    Channel,
    IsolatedAnswer,
    IsolatedOpened,
    IsolatedSettings,
    Lost,
)
from edgespec_runtimes.gguf.prepared import PreparedGguf


def main(arguments: Sequence[str]) -> int:
    """Serve one model through the sockets with these numbers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel, control = (socket.socket(fileno=int(number)) for number in arguments)
    try:
        _serve(Channel(channel), control)
    except Lost:
        return 0
    return 0


def _serve(channel: Channel, control: socket.socket) -> None:
    settings: IsolatedSettings = channel.receive()
    models: list[LanguageModel | PreparedGguf] = []
    Thread(target=_obey, args=(control, models), daemon=True).start()
    try:
        prepared = PreparedGguf(settings.request, read_header(settings.request.path))
        prepared.is_isolated = True
        prepared.adopt(settings.offloading)
        models.append(prepared)
        model = prepared.load(settings.plan, lambda *now: channel.send(("progress", now)))
        prepared.close()
        assert isinstance(model, KeepsState)
    except EdgespecError as error:
        channel.send(IsolatedAnswer(error=error))
        return
    models.append(model)
    channel.send(IsolatedAnswer(IsolatedOpened(model.info, model.state_origin)))
    try:
        while True:
            name, args = channel.receive()
            _answer(channel, model, name, args)
    finally:
        model.close()


def _obey(control: socket.socket, models: list[LanguageModel | PreparedGguf]) -> None:
    """Cancel what runs whenever the other process asks; end where it is gone."""
    while control.recv(1):
        if models:
            models[-1].cancel()
    os._exit(0)


def _answer(channel: Channel, model: Any, name: str, args: tuple[Any, ...]) -> None:
    value, error, shape = None, None, None
    try:
        if name == "prefill":
            model.prefill(*args, lambda *now: channel.send(("progress", now)))
        elif name == "write_state":
            model.write_state(lambda piece: _send_piece(channel, piece))
        elif name == "read_state":
            model.read_state(*args, _RemoteRead(channel))
        elif name == "state_bytes":
            value = model.state_bytes
        else:
            value = getattr(model, name)(*args)
    except EdgespecError as failure:
        error = failure
    array = value if isinstance(value, np.ndarray) else None
    if array is not None:
        array, value, shape = np.ascontiguousarray(array), None, array.shape
    channel.send(
        IsolatedAnswer(value, error, shape, model.n_committed, model.last_report, model.paging())
    )
    if array is not None:
        channel.send_bytes(array.data.cast("B"))


def _send_piece(channel: Channel, piece: memoryview) -> None:
    channel.send(("piece", piece.nbytes))
    channel.send_bytes(piece)


class _RemoteRead:
    """Implements `Read`: asks the other process for the pieces."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def size(self) -> int:
        return int(self._ask(("size", None)))

    def __call__(self, into: memoryview) -> None:
        self._ask(("fill", into.nbytes))
        self._channel.receive_into(into.cast("B"))

    def _ask(self, question: tuple[str, int | None]) -> Any:
        self._channel.send(question)
        answer = self._channel.receive()
        if isinstance(answer, EdgespecError):
            raise answer
        return answer
