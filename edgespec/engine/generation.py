"""The caller's handle of one request: it is iterated, cancelled and closed, and has a result.

Knows the engine's thread only through its queue, and nothing of models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from edgespec.concurrency.owning import POLL_S, Closeable, Users
from edgespec.engine.scheduler import Scheduler
from edgespec.engine.text import Text
from edgespec.errors import Cancelled, SessionClosed, UsageError
from edgespec.values import GenerationResult, MemoryStats, PromptProgress, TokenEvent

if TYPE_CHECKING:
    import asyncio


class Generation(Closeable):
    """Iterator over the tokens of one request as they are accepted, with a `result` at its end.

    Taking the first token starts it: it then waits in line for its turn. It ends with its text,
    when it is cancelled, closed or no longer referenced, and after an error of the models. Any
    thread may take the next token, one thread at a time. A pass is made when a token is wanted and
    none is there; passes that other texts need go on with this one, too.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        text: Text,
        load_s: float = 0.0,
        memory_stats: Callable[[], MemoryStats] = MemoryStats,
    ) -> None:
        """The result has `load_s`, the time of loading the models, and what `memory_stats` returns
        at the end; its owner is referenced as long as this exists."""
        self._scheduler = scheduler
        self._load_s = load_s
        self._memory_stats = memory_stats
        self._users = Users("the generation", is_exclusive=True)
        self._deliveries: SimpleQueue[Sequence[Any]] = SimpleQueue()
        self._events: deque[TokenEvent] = deque()
        """Tokens that are here and not taken, with the progress of requests that yield it."""
        self._is_over = False
        """True once the delivery without tokens is here, which is the last."""
        self._came: asyncio.Event | None = None
        """Set by deliveries in an event loop."""
        self._result: GenerationResult | None = None
        self._failure: Exception | None = None
        self._text = text
        text.deliver = self._deliveries.put

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TokenEvent:
        """The next token. StopIteration carries the result.

        Raises SessionClosed if the session was closed, and UsageError while another thread takes a
        token. Errors of the models end the generation.
        """
        if self._result is None:
            with self._users, self._scheduler.use():
                if not self._events:
                    self._wait()
                if self._events:
                    return self._events.popleft()
                self._finish()
        raise StopIteration(self._result)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        """The next token in an event loop, which goes on meanwhile; the text is written to its end
        from the first one on. Raises the errors of the models, and SessionClosed."""
        import asyncio  # here, because it takes memory

        if self._came is None:
            put, came, loop = self._deliveries.put, asyncio.Event(), asyncio.get_running_loop()

            def deliver(events: Sequence[object]) -> None:
                put(events)
                with suppress(RuntimeError):  # the loop is closed: no task waits
                    loop.call_soon_threadsafe(came.set)

            self._text.deliver = deliver
            self.run_ahead()
            self._came = came
        while self._result is None:
            self._came.clear()
            try:
                while not self._is_over and not self._deliveries.empty():
                    self._take(self._deliveries.get())
            except BaseException:
                self.cancel()
                raise
            if self._events:
                return self._events.popleft()
            if self._is_over:
                self._finish()
                break
            with suppress(TimeoutError):  # wait_for of Python 3.11 may lose a cancellation
                async with asyncio.timeout(POLL_S):
                    await self._came.wait()
            if self._text.is_cancelled:
                self.cancel()
        raise StopAsyncIteration

    @property
    def result(self) -> GenerationResult:
        """The whole text, or the text so far if the generation was cancelled or closed.

        It includes accepted tokens that were not taken. Raises UsageError before the end, and the
        error that ended the generation.
        """
        if self._failure is not None:
            raise self._failure
        if self._result is None and self._scheduler.is_closed:
            self._set_result()
        if self._result is None:
            raise UsageError("the generation has not ended: iterate it to its end, or close it")
        return self._result

    def run_ahead(self) -> None:
        """Write the whole text from now on, whether or not somebody takes tokens. Raises
        SessionClosed."""
        with self._scheduler.use():
            self._text.terms = replace(self._text.terms, runs_ahead=True)
            self._scheduler.want(self._text)

    def cancel(self) -> None:
        """End the text soon, from any thread; its finish reason is "cancelled"."""
        self._scheduler.cancel(self._text)

    def close(self) -> None:
        """End the text and wait until the engine is free. Idempotent, from any thread.

        Raises UsageError in a callback of the generation itself.
        """
        self._users.close(self.cancel, self._leave)

    def __del__(self) -> None:
        # the garbage collector may run within the models' calls: the engine's thread cleans up
        if text := getattr(self, "_text", None):
            self._scheduler.leave(text)

    def _wait(self) -> None:
        """Wait until there is a token to take or the text has ended."""
        if not self._is_over and self._deliveries.empty():
            self._scheduler.want(self._text)
        while not self._is_over and not self._events:
            try:
                self._take(self._deliveries.get(timeout=POLL_S))
            except Empty:
                # a call that was about to begin when it was cancelled has not heard of it
                if self._text.is_cancelled:
                    self.cancel()
            except BaseException:
                self._leave()
                raise

    def _take(self, events: Sequence[Any]) -> None:
        progress, self._is_over = self._text.terms.progress, not events
        for event in events:
            if progress is not None and isinstance(event, PromptProgress):
                progress("reading the prompt", event.processed / event.total)
            else:
                self._events.append(event)

    def _finish(self) -> None:
        """Set the result at the end, or raise the error that is the end."""
        failure = self._text.failure
        if isinstance(failure, SessionClosed):
            raise failure
        self._set_result()
        if failure is not None and not isinstance(failure, Cancelled):
            self._failure = failure if isinstance(failure, Exception) else None
            raise failure

    def _leave(self) -> None:
        """End the text, and wait until the engine has let go of it."""
        self._scheduler.leave(self._text)
        while not self._text.ended.is_set():
            with suppress(KeyboardInterrupt):
                self.cancel()
                self._text.ended.wait(POLL_S)
        self._set_result()

    def _set_result(self) -> None:
        if self._result is None:
            self._text.transcript.cancel()
            self._text.forget_grammar()
            result = self._text.result(self._load_s)
            self._result = replace(result, memory=self._memory_stats())
