"""The asyncio interface of a session: nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeVar, Unpack

from edgespec.chat.messages import Message
from edgespec.concurrency.worker import fulfil
from edgespec.engine.generation import Generation
from edgespec.session.session import ChatOptions, Session, TextOptions
from edgespec.settings.config import SamplingParams
from edgespec.values import GenerationResult

T = TypeVar("T")


class AsyncSession:
    """A `Session`'s texts in an event loop; closing the session stays with its owner.

        async with AsyncSession(session).stream("Once upon a time") as events:
            async for event in events: ...

    What takes long before a generation begins, like compiling a grammar, runs in a thread; so do
    other methods by `asyncio.to_thread`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        **options: Unpack[TextOptions],
    ) -> AbstractAsyncContextManager[Generation]:
        """`Session.stream` for `async with`; mistakes are raised on entering, leaving ends the
        text."""
        return _begun(lambda: self._session.stream(prompt, sampling, max_tokens, **options))

    def chat(
        self, messages: Sequence[Message], **options: Unpack[ChatOptions]
    ) -> AbstractAsyncContextManager[Generation]:
        """`Session.chat`, otherwise as `stream`."""
        return _begun(lambda: self._session.chat(messages, **options))

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        **options: Unpack[TextOptions],
    ) -> GenerationResult:
        """`Session.generate`; cancelling the task cancels it."""
        async with self.stream(prompt, sampling, max_tokens, **options) as generation:
            async for _ in generation:
                pass
            return generation.result


@asynccontextmanager
async def _begun(start: Callable[[], Generation]) -> AsyncIterator[Generation]:
    generation = await in_thread(start)
    try:
        yield generation
    finally:
        await in_thread(generation.close, generation.cancel)


async def in_loop(iterator: Iterator[T], cancel: Callable[[], None]) -> AsyncGenerator[T, None]:
    """The items of an iterator that runs in a thread; `aclose` ends it by `cancel`."""
    items: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def run() -> None:
        for item in iterator:
            loop.call_soon_threadsafe(items.put_nowait, (item,))

    running = asyncio.ensure_future(in_thread(run, cancel))
    running.add_done_callback(lambda _: items.put_nowait(None))
    try:
        while (item := await items.get()) is not None:
            yield item[0]
        await running
    finally:
        cancel()
        await asyncio.gather(running, return_exceptions=True)


async def in_thread(call: Callable[[], T], cancel: Callable[[], None] = lambda: None) -> T:
    """The result of `call`, run in a thread of its own; cancelling the task calls `cancel`."""
    done: Future[T] = Future()
    thread = threading.Thread(
        target=fulfil, args=(done, call), name="edgespec-generation", daemon=True
    )
    thread.start()
    waiting = asyncio.wrap_future(done)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        cancel()
        while not waiting.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        waiting.exception()  # nobody else sees it, of which asyncio would complain
        raise
