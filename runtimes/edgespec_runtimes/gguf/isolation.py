"""Runs a model in a child process, so that an abort in native code does not end the application.

llama.cpp's RPC aborts the process that loses a server. `isolated` is the child's program.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from typing import Any

import numpy as np

from edgespec.concurrency.exit_codes import signal_name
from edgespec.concurrency.interpreter import python
from edgespec.concurrency.owning import Users
from edgespec.errors import Cancelled, TargetLost
from edgespec.memory import process
from edgespec.memory.budget import MemoryPlan
from edgespec.pool import Pool
from edgespec.ports import LanguageModel, PassPart, Progress, Vocabulary
from edgespec.runtimes import ModelRequest
from edgespec.values import PagingStats, PassReport
from edgespec_runtimes.gguf.weights.offloading import Offloading

_PROGRAM = "edgespec_runtimes.gguf.isolated"
_PIECE_BYTES = 1 << 20
_POLL_S = 0.1
_END_S = 10.0
"""Seconds for the child to free everything when it is closed."""


class Lost(Exception):
    """The other process has ended."""


class Channel:
    """Transfers messages and arrays between parent and child."""

    def __init__(self, connection: Any) -> None:
        """`connection` is an end of a `multiprocessing.Pipe`, whose type differs on Windows."""
        self.poll, self.close = connection.poll, connection.close
        self._connection = connection

    def send(self, message: Any) -> None:
        with _loss_told():
            self._connection.send(message)

    def receive(self) -> Any:
        with _loss_told():
            return self._connection.recv()

    def send_bytes(self, content: memoryview) -> None:
        """Send bytes in pieces, so that neither process needs a second copy of all of them."""
        with _loss_told():
            for begin in range(0, content.nbytes, _PIECE_BYTES):
                self._connection.send_bytes(content[begin : begin + _PIECE_BYTES])

    def receive_into(self, view: memoryview) -> None:
        with _loss_told():
            while view:
                view = view[self._connection.recv_bytes_into(view) :]


@contextmanager
def _loss_told() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise Lost from error


@dataclass(frozen=True, slots=True)
class IsolatedSettings:
    """Settings with which the child prepares and loads the model that its parent has planned."""

    request: ModelRequest
    offloading: Offloading
    plan: MemoryPlan | None


@dataclass(frozen=True, slots=True)
class IsolatedAnswer:
    """The answer to a call; the first one, after loading, has the model's info.

    The bytes of an array follow it.
    """

    value: Any = None
    error: BaseException | None = None
    shape: tuple[int, ...] | None = None
    committed: Sequence[int] = ()
    """Tokens committed to each slot."""
    report: PassReport = field(default_factory=PassReport)
    paging: PagingStats = field(default_factory=PagingStats)


class IsolatedModel(LanguageModel):
    """A model in a child process."""

    def __init__(
        self,
        settings: IsolatedSettings,
        vocabulary: Vocabulary,
        free_vocabulary: Callable[[], None],
        is_stopped: Callable[[], bool],
        progress: Progress | None = None,
    ) -> None:
        """Start the child and wait until the model is loaded, or `is_stopped` returns True."""
        command = python("-m", _PROGRAM)
        self.vocabulary = vocabulary
        self._free_vocabulary = free_vocabulary
        self._servers = settings.offloading.placement.servers
        self._users = Users("the model")
        self._failure: TargetLost | None = None
        self._n_calls = 0
        self._is_running = True  # loading is call 0
        ours, theirs = Pipe()
        self._channel = Channel(ours)
        self._control, controlled = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the model
        descriptors = theirs.fileno(), controlled.fileno()
        with theirs, controlled:
            self._process = subprocess.Popen(
                [*command, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=descriptors,
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},
                start_new_session=True,
            )
        process.include_process(self._process.pid)
        self.last_report = PassReport()
        self._committed: Sequence[int] = ()
        self._paging = PagingStats()
        try:
            self._tell(settings)
            while not self._channel.poll(_POLL_S):
                if is_stopped():
                    raise Cancelled("loading was cancelled")
            self.info = replace(self._answer(progress).value, gives_features=False)
            self._committed = [0] * self.info.n_slots
        except BaseException:
            self._users.close(lambda: None, self._release)
            raise
        self._is_running = False

    def committed_of(self, slot: int) -> int:
        return self._committed[slot]

    def evaluate(
        self, parts: Sequence[PassPart], progress: Progress | None = None
    ) -> list[np.ndarray]:
        copies = [
            PassPart(slot, pool.copy(), [*map(int, nodes)], [*map(int, reads)])
            for slot, pool, nodes, reads in parts
        ]
        logits: np.ndarray = self._call("evaluate", copies, progress=progress)
        return np.split(logits, np.cumsum([len(part.nodes) for part in parts])[:-1])

    def commit(
        self, pool: Pool, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        path, keep = [int(node) for node in path], [int(node) for node in keep]
        self._call("commit", pool.copy(), path, keep, slot)

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        self._call("truncate", n_tokens, slot)

    def share(self, source: int, target: int, n_tokens: int) -> None:
        self._call("share", source, target, n_tokens)

    def paging(self) -> PagingStats:
        return self._paging

    def cancel(self) -> None:
        if not self._is_running:
            return
        try:
            self._control.send(self._n_calls)
        except OSError:  # the child has ended
            return

    def close(self) -> None:
        """Cancel the running call, wait for it and end the child. Idempotent, from any thread."""
        self._users.close(self.cancel, self._release)

    def _release(self) -> None:
        self._channel.close()  # the child ends when it notices
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        process.exclude_process(self._process.pid)
        self._control.close()
        self._said.close()
        self._free_vocabulary()

    def _call(self, name: str, *args: Any, progress: Progress | None = None) -> Any:
        """Call a method of the child's model.

        Raises the method's errors, and TargetLost once the child has ended.
        """
        with self._users.use():
            if self._failure is not None:
                raise self._failure
            self._n_calls += 1
            self._is_running = True
            try:
                self._tell((self._n_calls, name, args))
                answer = self._answer(progress)
            finally:
                self._is_running = False
            self._committed = answer.committed
            self.last_report, self._paging = answer.report, answer.paging
            if answer.error is not None:
                raise answer.error
            return answer.value

    def _tell(self, message: Any) -> None:
        try:
            self._channel.send(message)
        except Lost:
            raise self._lost() from None

    def _answer(self, progress: Progress | None = None) -> IsolatedAnswer:
        """Wait for the answer to a call, telling `progress` of the child's meanwhile."""
        try:
            while not isinstance(said := self._channel.receive(), IsolatedAnswer):
                if progress:
                    progress(*said)
            if said.shape is None:
                return said
            array = np.empty(said.shape, np.float32)
            self._channel.receive_into(array.reshape(-1).view(np.uint8).data)
        except Lost:
            raise self._lost() from None
        return IsolatedAnswer(array, None, None, said.committed, said.report, said.paging)

    def _lost(self) -> TargetLost:
        """The error of this and all further calls."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            code = 0
        if signal_name(code) == "SIGKILL":
            self._failure = TargetLost(
                "the process of the target was killed, as the kernel does where memory is short: "
                "lower `memory_budget`, and load the models anew"
            )
            return self._failure
        ended, names = signal_name(code), ", ".join(self._servers)
        reason = f"{ended} inside llama.cpp" if ended else f"exit code {code}"
        lost = "one of the RPC servers" if len(self._servers) > 1 else "the RPC server"
        self._failure = TargetLost(
            f"{lost} {names} was lost, and with it the target ({reason}): see whether "
            "the server still runs, start it again, and load the models anew"
        )
        return self._failure
