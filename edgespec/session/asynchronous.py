"""The asyncio interface of a session: nothing here blocks the event loop.

`Session` and `Completions` document each call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar, Unpack, overload

from edgespec.chat.messages import Message
from edgespec.engine.generation import Generation
from edgespec.memory.budget import MemoryPlan
from edgespec.session.session import ChatOptions, Session, TextOptions
from edgespec.settings.config import SamplingParams
from edgespec.values import GenerationResult

if TYPE_CHECKING:
    from edgespec.completions.requests import Prompts
    from edgespec.completions.running_request import Completion

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Cancellable(Iterator[T_co], Protocol[T_co]):
    """An iterator that any thread may cancel, such as a `Completion`."""

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class AsyncSession:
    """The methods of a `Session` for an event loop; closing the session stays with its owner.

        async with AsyncSession(session).stream("Once upon a time") as events:
            async for event in events: ...

    What takes long before a generation begins, like compiling a grammar, runs in its thread.
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

    def generate_many(
        self,
        prompts: Iterable[str | Sequence[int] | Sequence[Message]],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        **options: Unpack[TextOptions],
    ) -> InThread[GenerationResult]:
        """`Session.generate_many`: `async for` its results; the prompts are read in a thread."""
        return InThread(self._session.generate_many(prompts, sampling, max_tokens, **options))

    async def set_memory_budget(self, size: int | str) -> MemoryPlan:
        """`Session.set_memory_budget`."""
        return await in_thread(lambda: self._session.set_memory_budget(size))

    @overload
    async def create_chat_completion(
        self, messages: Sequence[Message], stream: Literal[False] = False, **fields: Any
    ) -> dict[str, Any]: ...

    @overload
    async def create_chat_completion(
        self, messages: Sequence[Message], stream: Literal[True], **fields: Any
    ) -> InThread[dict[str, Any]]: ...

    async def create_chat_completion(
        self, messages: Sequence[Message], stream: bool = False, **fields: Any
    ) -> dict[str, Any] | InThread[dict[str, Any]]:
        """`Session.create_chat_completion`; with `stream` an asynchronous iterator of chunks."""
        create = self._session.create_chat_completion
        return await _completed(lambda: create(messages, True, **fields), stream)

    @overload
    async def create_completion(
        self, prompt: Prompts, stream: Literal[False] = False, **fields: Any
    ) -> dict[str, Any]: ...

    @overload
    async def create_completion(
        self, prompt: Prompts, stream: Literal[True], **fields: Any
    ) -> InThread[dict[str, Any]]: ...

    async def create_completion(
        self, prompt: Prompts, stream: bool = False, **fields: Any
    ) -> dict[str, Any] | InThread[dict[str, Any]]:
        """`Session.create_completion`; with `stream` an asynchronous iterator of chunks."""
        create = self._session.create_completion
        return await _completed(lambda: create(prompt, True, **fields), stream)


@asynccontextmanager
async def _begun(start: Callable[[], Generation]) -> AsyncIterator[Generation]:
    generation = await in_thread(start)
    try:
        yield generation
    finally:
        await in_thread(generation.close, generation.cancel)


async def _completed(
    create: Callable[[], Completion], stream: bool
) -> dict[str, Any] | InThread[dict[str, Any]]:
    completion = await in_thread(create)
    return InThread(completion) if stream else await in_thread(completion.whole, completion.cancel)


class InThread(Generic[T]):
    """An asynchronous iterator and context manager over an iterator that runs in a thread.

    The thread ends with the last item and with `aclose`. If a waiting task is cancelled, the
    iterator goes on until `aclose`.
    """

    def __init__(self, iterator: Cancellable[T]) -> None:
        """Start the thread; to be called in the event loop."""
        self._iterator = iterator
        self._items: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
        put = self._items.put_nowait
        loop = asyncio.get_running_loop()

        def run() -> None:
            with closing(iterator) as items:
                for item in items:
                    loop.call_soon_threadsafe(put, (item,))

        self._ended = _started(run)
        self._ended.add_done_callback(lambda _: put(None))

    def cancel(self) -> None:
        """End the text soon; items that are already there are still yielded."""
        self._iterator.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if (item := await self._items.get()) is not None:
            return item[0]
        self._items.put_nowait(None)  # for whoever asks again
        self._ended.result()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the iteration and wait for its thread. Idempotent."""
        self._iterator.cancel()
        await asyncio.wait([self._ended])


async def in_thread(call: Callable[[], T], cancel: Callable[[], None] = lambda: None) -> T:
    """The result of `call`, run in a thread; cancelling the task calls `cancel`."""
    waiting = _started(call)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        cancel()
        while not waiting.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        raise


def _started(call: Callable[[], T]) -> asyncio.Future[T]:
    """The result to come of `call`, which runs in a thread of its own."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting task
            done.set_exception(error)

    threading.Thread(target=run, name="edgespec-generation", daemon=True).start()
    waiting = asyncio.wrap_future(done)
    # asyncio complains of errors that nobody sees, as those of a call whose task was cancelled
    waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return waiting
