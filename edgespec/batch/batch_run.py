"""Answers the requests of a file, several at a time, and writes each answer when it is complete.

Knows requests and threads; the caller opens and closes the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgespec.batch.answered import Answered, KeySet
from edgespec.batch.lines import (
    BatchRequest,
    LineError,
    answer_line,
    error_key,
    error_line,
    parse_line,
    request_key,
)
from edgespec.completions.protocols.message_replies import MessagesReply
from edgespec.completions.protocols.openai_replies import ChatReply, TextReply
from edgespec.completions.protocols.request_parts import leaving_out
from edgespec.completions.protocols.response_replies import ResponsesReply, StoredResponses
from edgespec.completions.refusals import refusal_of
from edgespec.completions.request_limits import MIB, POOL_BYTES, STORED_BYTES
from edgespec.completions.running_request import Completion, Reply
from edgespec.completions.service import Completions
from edgespec.concurrency.owning import POLL_S
from edgespec.errors import Cancelled, EdgespecError, SessionClosed
from edgespec.memory import heap

MAX_REQUESTS = 250_000
"""Most lines of one file, so that their keys fit into the plan's headroom."""


MAX_MODEL_FAILURES = 5
"""Consecutive failures of the model that end a run: the storage of its weights may be gone."""


@dataclass(slots=True)
class BatchCounts:
    """Numbers of requests in one run, by outcome."""

    answered: int = 0
    """Requests answered by this run, with a text or an error."""
    failed: int = 0
    """Requests answered by this run with an error."""
    skipped: int = 0
    """Requests answered by earlier runs."""
    skipped_failed: int = 0
    """Requests answered by earlier runs with an error."""


Start = Callable[[BatchRequest], Completion]
"""Starts the completion of a request."""


def starting(completions: Completions) -> Start:
    """A function that starts the completions of requests."""
    dialects: dict[str, Callable[[Any], Reply]] = {
        "/v1/chat/completions": partial(ChatReply, completions),
        "/v1/completions": partial(TextReply, completions),
        "/v1/responses": partial(ResponsesReply, completions, StoredResponses(STORED_BYTES)),
        "/v1/messages": partial(MessagesReply, completions),
    }

    def start(request: BatchRequest) -> Completion:
        with leaving_out([]):
            return dialects[request.url](request.body).begin()

    return start


class BatchRun:
    """One run over lines of a file."""

    def __init__(
        self,
        start: Start,
        lines: Iterator[tuple[int, bytes | None]],
        write: Callable[[bytes], None],
        cancel: Callable[[], None],
        earlier: Answered,
        n_at_once: int = 1,
    ) -> None:
        """`start` is `starting(completions)`. `lines` come from `numbered_lines`, with None for
        lines that are too long.

        `write` appends a line to the output; `cancel` ends all generations of the session soon.
        """
        self._start = start
        self._lines = lines
        self._write_line = write
        self._cancel = cancel
        self._earlier_answers = earlier
        self._n_at_once = n_at_once
        self._pool = threading.Semaphore(POOL_BYTES // MIB)
        """MiB for grammars and large answers."""
        self._in_line = threading.Lock()
        """Held by the request that takes memory of the pool next."""
        self._seen = KeySet()
        self._reading = threading.Lock()
        self._at_input: list[threading.Thread] = []
        """Threads that wait for a line, possibly for ever if the input is a pipe."""
        self._preparing = threading.Lock()
        """Held while a request is prepared, which takes far more memory than its body."""
        self._writing = threading.Lock()
        self._failure: BaseException | None = None
        self._n_model_failures = 0
        """Consecutive failures."""
        self.is_stopping = False
        self.counts = BatchCounts()

    def run(self, show: Callable[[BatchCounts], None] = lambda counts: None) -> BatchCounts:
        """Answer all lines. `show` is called in this thread, ten times a second.

        Requests that fail get output lines of their own. Raises Cancelled after `stop`, OSError of
        the files, and EdgespecError for too many lines or MAX_MODEL_FAILURES.
        """
        threads = [
            threading.Thread(target=self._work, name=f"edgespec-batch-{i}", daemon=True)
            for i in range(self._n_at_once)
        ]
        for thread in threads:
            thread.start()
        try:
            self._wait_for(threads, lambda: show(self.counts))
        except BaseException:
            self.stop()
            self._wait_for(threads, self._cancel)
            raise
        if self._failure is not None:
            raise self._failure
        if self.is_stopping:
            raise Cancelled("the batch was stopped")
        return self.counts

    def stop(self) -> None:
        """End the run soon, from any thread; running requests get no output line."""
        self.is_stopping = True
        self._cancel()

    def _wait_for(self, threads: Sequence[threading.Thread], meanwhile: Callable[[], None]) -> None:
        """Wait until no thread answers a request; after `stop`, threads waiting for input are
        ignored."""
        while under_way := [
            thread
            for thread in threads
            if thread.is_alive() and not (self.is_stopping and thread in self._at_input)
        ]:
            meanwhile()
            under_way[0].join(POLL_S)

    def _work(self) -> None:
        try:
            while (task := self._next()) is not None:
                self._end(*task)
        except (Cancelled, SessionClosed) as error:
            self._fail(None if self.is_stopping else error)
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._fail(error)

    def _fail(self, error: BaseException | None) -> None:
        self._failure = self._failure or error
        with suppress(SessionClosed):
            self.stop()

    def _next(self) -> tuple[str, Callable[[], tuple[int, bytes]]] | None:
        """Key of the next line, and a function that returns its status and output line; None at the
        end."""
        self._at_input.append(threading.current_thread())
        with self._reading:
            line = None if self.is_stopping else next(self._lines, None)
            self._at_input.remove(threading.current_thread())
            if line is None or self.is_stopping:
                return None
            number, text = line
            if number > MAX_REQUESTS:
                raise EdgespecError(
                    f"there are more than {MAX_REQUESTS:,} lines, as many as one run takes: split "
                    "the file"
                )
            try:
                request = self._parse(text)
            except LineError as error:
                written = error_line(number, error)
                return error_key(number, error), lambda: (400, written)
        return request_key(request.custom_id), partial(self._respond, request)

    def _parse(self, line: bytes | None) -> BatchRequest:
        if line is None:
            raise LineError(
                "the line is too long: max-body in a --config file admits more", "too_large"
            )
        request = parse_line(line)
        if not self._seen.add(request.custom_id):
            raise LineError(
                f"custom_id {request.custom_id!r} is that of an earlier line: give each line its "
                "own",
                "duplicate_custom_id",
            )
        return request

    def _end(self, key: str, answer: Callable[[], tuple[int, bytes]]) -> None:
        """Call `answer` and write its line, unless an earlier run has answered `key`."""
        if key in self._earlier_answers.answered:
            with self._writing:
                self.counts.skipped += 1
                self.counts.skipped_failed += key in self._earlier_answers.refused
            return
        status, written = answer()
        with self._writing:
            self._write_line(written)
            self.counts.answered += 1
            self.counts.failed += status != 200
            self._n_model_failures = self._n_model_failures + 1 if status >= 500 else 0
            if self._n_model_failures >= MAX_MODEL_FAILURES:
                raise EdgespecError(
                    f"the model failed at {self._n_model_failures} requests in a row: the errors "
                    "in the output say why, and the next run tries them again"
                )

    def _respond(self, request: BatchRequest) -> tuple[int, bytes]:
        try:
            with self._preparing:
                completion = self._start(request)
            with self._holding(-(-completion.pool_bytes // MIB)), completion:
                self._check_going()  # `cancel` may have come before it began
                body = completion.whole()
                if completion.is_cut:
                    raise Cancelled("the batch was stopped")
                return 200, answer_line(request.custom_id, 200, body)
        except (Cancelled, SessionClosed):
            raise
        except Exception as error:  # noqa: BLE001 - it fails only this request
            refusal = refusal_of(error)
            return refusal.status, answer_line(request.custom_id, refusal.status, refusal.content)
        finally:
            heap.trim_heap()

    @contextmanager
    def _holding(self, n_mib: int) -> Iterator[None]:
        """Wait for memory of the pool, and hold it in the block."""
        n_held = 0
        try:
            with self._in_line if n_mib else nullcontext():
                while n_held < n_mib:
                    self._check_going()
                    n_held += self._pool.acquire(timeout=POLL_S)
            yield
        finally:
            if n_held:
                self._pool.release(n_held)

    def _check_going(self) -> None:
        if self.is_stopping:
            raise Cancelled("the batch was stopped")
