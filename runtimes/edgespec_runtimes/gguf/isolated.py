"""The child process of `isolation`: loads a model and answers calls until its parent is gone."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any

import numpy as np

from edgespec.errors import EdgespecError
from edgespec.ports import LanguageModel
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.isolation import (
    Channel,
    IsolatedAnswer,
    IsolatedSettings,
    Lost,
)
from edgespec_runtimes.gguf.prepared import PreparedGguf


def main(arguments: Sequence[str]) -> int:
    """Serve a model through the connections with the given file descriptors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel, control = (Connection(int(number)) for number in arguments)
    try:
        _serve(Channel(channel), control)
    except Lost:
        return 0
    return 0


def _serve(channel: Channel, control: Connection) -> None:
    settings: IsolatedSettings = channel.receive()
    running = _RunningCall()
    Thread(target=_obey, args=(control, running), daemon=True).start()
    try:
        prepared = PreparedGguf(settings.request, read_header(settings.request.path))
        prepared.is_isolated = True
        prepared.adopt(settings.offloading)
        running.begin(0, prepared)
        model = prepared.load(settings.plan, lambda *now: channel.send(now))
        running.end()
        prepared.close()
    except Exception as error:  # noqa: BLE001 - raised by the other process
        channel.send(IsolatedAnswer(error=_located(error)))
        return
    channel.send(IsolatedAnswer(model.info))
    try:
        while True:
            number, name, args = channel.receive()
            running.begin(number, model)
            _answer(channel, running, model, name, args)
    finally:
        model.close()


class _RunningCall:
    """The running call and its number, so that late cancellations do not hit another call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._number = -1
        self._model: LanguageModel | PreparedGguf | None = None

    def begin(self, number: int, model: LanguageModel | PreparedGguf) -> None:
        with self._lock:
            self._number, self._model = number, model

    def end(self) -> None:
        with self._lock:
            self._model = None

    def cancel(self, number: int) -> None:
        with self._lock:
            if self._model is not None and number == self._number:
                self._model.cancel()


def _obey(control: Connection, running: _RunningCall) -> None:
    """Cancel calls whose numbers the parent sends; ends when the parent is gone."""
    with suppress(EOFError, ConnectionError):
        while True:
            running.cancel(control.recv())
    os._exit(0)


def _answer(
    channel: Channel, running: _RunningCall, model: Any, name: str, args: tuple[Any, ...]
) -> None:
    value, error, shape = None, None, None
    try:
        if name == "evaluate":
            logits = model.evaluate(*args, lambda *now: channel.send(now))
            value = logits[0] if len(logits) == 1 else np.concatenate(logits)
        else:
            value = getattr(model, name)(*args)
    except Lost:
        raise
    except Exception as failure:  # noqa: BLE001 - raised by the other process
        error = _located(failure)
    running.end()
    array = value if isinstance(value, np.ndarray) else None
    if array is not None:
        array, value, shape = np.ascontiguousarray(array), None, array.shape
    committed = [model.committed_of(slot) for slot in range(model.info.n_slots)]
    channel.send(IsolatedAnswer(value, error, shape, committed, model.last_report, model.paging()))
    if array is not None:
        channel.send_bytes(array.reshape(-1).view(np.uint8).data)


def _located(error: Exception) -> Exception:
    """The error with a note of where it was raised, unless it is one for users: a traceback does
    not leave the process."""
    if not isinstance(error, EdgespecError):
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
    return error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
