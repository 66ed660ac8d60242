"""The asyncio interface of a session: nothing here blocks the event loop.

`Session` and `Completions` document each call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar, Unpack, overload

from edgespec.chat.messages import Message
from edgespec.engine.generation import Generation
from edgespec.errors import UsageError
from edgespec.memory.budget import MemoryPlan
from edgespec.session.session import ChatOptions, Session, TextOptions
from edgespec.settings import arguments
from edgespec.settings.config import SamplingParams
from edgespec.values import GenerationResult, TokenEvent

if TYPE_CHECKING:
    from edgespec.completions.requests import Prompts
    from edgespec.completions.running_request import Completion

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Cancellable(Protocol[T_co]):
    """An iterator that any thread may cancel: a `Generation`, a `Completion`."""

    def __iter__(self) -> Iterator[T_co]: ...

    def __next__(self) -> T_co: ...

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
    ) -> AsyncGeneration:
        """`Session.stream`; mistakes are raised on entering, or where the first token is waited
        for."""
        arguments.keywords(options, ChatOptions.__annotations__)
        return AsyncGeneration(
            lambda: self._session.stream(prompt, sampling, max_tokens, **options)
        )

    def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> AsyncGeneration:
        """`Session.chat`; mistakes are raised as with `stream`."""
        arguments.keywords(options, ChatOptions.__annotations__)
        return AsyncGeneration(lambda: self._session.chat(messages, **options))

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
        return await asyncio.to_thread(self._session.set_memory_budget, size)

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


async def _completed(
    create: Callable[[], Completion], stream: bool
) -> dict[str, Any] | InThread[dict[str, Any]]:
    completion = await asyncio.to_thread(create)
    if stream:
        return InThread(completion)
    return await in_thread(completion.whole, completion.cancel)


class InThread(Generic[T]):
    """An asynchronous iterator and context manager over an iterator that runs in a thread.

    The thread starts with the first item requested and ends with `aclose`. If a waiting task is
    cancelled, the iterator goes on until `aclose`.
    """

    def __init__(self, iterator: Cancellable[T]) -> None:
        self._iterator = iterator
        self._items: asyncio.Queue[T | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def cancel(self) -> None:
        """End the text soon; items that are already there are still yielded."""
        self._iterator.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._is_over:
            raise StopAsyncIteration
        if self._task is None:
            run = partial(self._run, asyncio.get_running_loop())
            self._task = asyncio.create_task(in_thread(run, self._iterator.cancel))
        if (item := await self._items.get()) is None:
            self._is_over = True
            await self._task
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the iteration and wait for its thread. Idempotent."""
        self._is_over = True
        self._iterator.cancel()
        if self._task is None:
            self._iterator.close()
        else:
            await asyncio.wait([self._task])
            self._task.cancelled() or self._task.exception()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        def hand_over(item: T | None) -> None:
            loop.call_soon_threadsafe(self._items.put_nowait, item)

        try:
            with closing(self._iterator) as items:
                for item in items:
                    hand_over(item)
        finally:
            hand_over(None)


class AsyncGeneration:
    """A `Generation` for an event loop: `async for` its tokens, then ask for its `result`.

    It begins when it is iterated or entered; its block has the session's own `Generation`.
    """

    def __init__(self, start: Callable[[], Generation]) -> None:
        self._start = start
        self._is_cancelled = False
        self._generation: Generation | None = None

    async def __aenter__(self) -> Generation:
        """Check the request and begin it. Raises the errors of the session's method."""
        if self._generation is None:
            self._generation = await in_thread(self._start, self.cancel)
            if self._is_cancelled:
                self._generation.cancel()
        return self._generation

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        if self._generation is not None or not self._is_cancelled:
            async for event in await self.__aenter__():
                yield event

    @property
    def result(self) -> GenerationResult:
        """`Generation.result`. Raises UsageError before the end."""
        if self._generation is None:
            raise UsageError("the generation has not begun: iterate it with `async for`")
        return self._generation.result

    def cancel(self) -> None:
        """End the text soon; tokens that are already there are still yielded."""
        self._is_cancelled = True
        if self._generation is not None:
            self._generation.cancel()

    async def aclose(self) -> None:
        """End the text and wait until the engine has let go of it. Idempotent."""
        self.cancel()
        if self._generation is not None:
            await in_thread(self._generation.close, self._generation.cancel)


async def in_thread(call: Callable[[], T], cancel: Callable[[], None]) -> T:
    """The result of `call`, run in a thread; cancelling the task calls `cancel`."""
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
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        cancel()
        while not waiting.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        raise
