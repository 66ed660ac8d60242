"""One request for generated text, from its body to the end of its answer.

Waits for the model and for its turn, and streams or sends the answer. Knows HTTP and the queue;
what is asked and answered are the protocols' business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from edgespec.completions.decoding import decoded
from edgespec.completions.protocols.dialect import Asked
from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.protocols.request_parts import leaving_out
from edgespec.completions.refusals import Refusal
from edgespec.completions.running_request import Completion
from edgespec.errors import Cancelled
from edgespec.memory import heap
from edgespec.server.bodies import RequestBodies
from edgespec.server.failures import Failures, detached, error_body
from edgespec.server.hosting import ModelHost
from edgespec.server.queueing import Queue, ServerFigures
from edgespec.server.serving import Door, ServedText
from edgespec.server.streaming import COMMENT, EventStream
from edgespec.session.asynchronous import InThread, in_thread

Preparation = tuple[Asked, Completion]
"""A request that has been read, and its completion, which has not been started."""


@dataclass(slots=True)
class Answers:
    """Answers requests for text, as many at once as a model has slots, with what all routes use."""

    host: ModelHost
    bodies: RequestBodies
    queue: Queue
    figures: ServerFigures
    """Counts the generations of the host's models."""
    failures: Failures
    max_s: float | None = None
    """Most seconds of an answer from its turn on; None: no limit."""
    _closing: set[asyncio.Future[None]] = field(default_factory=set)
    """Tasks that end generations; referenced here because event loops keep weak references."""

    async def wanted(self, body: bytearray, embeds: bool = False) -> tuple[HostedModel, bool]:
        """The model that a request names, and true if it asks for a stream. Raises Refusal.

        With one model, the body is not decoded for this.
        """
        if len(self.host.models) == 1:
            return self.host.named(None, embeds), False

        def read() -> tuple[str | None, bool]:
            content = decoded(body)
            fields = content if isinstance(content, Mapping) else {}
            name = fields.get("model")
            return name if isinstance(name, str) else None, fields.get("stream") is True

        async with self.queue.preparing:
            name, streams = await in_thread(read)
        return self.host.named(name, embeds), streams

    async def complete(self, door: Door, request: Request) -> Response:
        """The answer of the route `door`."""
        async with AsyncExitStack() as stack:
            body = await stack.enter_async_context(self.bodies.of(request))
            stack.enter_context(self.queue.place())
            async with _while_connected(request):
                model, streams = await self.wanted(body)
                one = _OneAnswer(self, request, body, door, model, stack)
                if self.host.is_ready(model) or not streams:
                    await one.seat()
                    # refuse an invalid request now, before it waits for its turn
                    one.first = [await one.prepare()]
                    if not one.first[0][0].streams:
                        _, completion = await one.begin()
                        whole = await in_thread(completion.whole, completion.cancel)
                        return JSONResponse(whole)
            one.stack = rest = stack.pop_all()
        keep_closing = partial(self._keep_closing, request)
        return EventStream(one.events(), rest, keep_closing, door.has_events, waiting=one.waiting)

    def _keep_closing(self, request: Request, closing: asyncio.Future[None]) -> None:
        request.state.closing = closing
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


@dataclass(slots=True)
class _OneAnswer:
    """The steps of answering one request; what it holds is in `stack`."""

    shared: Answers
    request: Request
    body: bytearray
    door: Door
    model: HostedModel
    stack: AsyncExitStack
    served: ServedText | None = None
    """The loaded model; None until it is in memory."""
    first: Sequence[Preparation] = ()
    """The request as it was read on arrival, until its turn begins."""
    asked: Asked | None = None
    """The request that is being answered, once its turn has come."""

    def waiting(self) -> str:
        """Text for a stream in silence: the protocol's own event once the turn has come, which
        some clients count as no comment is, or a comment."""
        if self.served is None:
            return f": {self.shared.host.told_progress(self.model)}\n\n"
        told = self.asked.waiting() if self.asked else ()
        return "".join(map(self.door.told, told)) or COMMENT

    async def seat(self) -> None:
        """Wait until the model is in memory."""
        using = self.shared.host.using(self.model)
        self.served = await self.stack.enter_async_context(using)

    async def prepare(self) -> Preparation:
        """The validated request and its completion, not started; one at a time, to limit memory."""
        served, shared = self.served, self.shared
        assert served is not None
        dialect = served.dialects[self.door.path]

        def prepare() -> Preparation | Refusal:
            try:
                with leaving_out(self.request.state.left_out):
                    asked = dialect(decoded(self.body))
                return asked, asked.begin(self.request.state.client)
            except Exception as error:  # noqa: BLE001 - its traceback would keep the request alive
                return detached(shared.failures.refusal_of(error, self.request))
            finally:
                heap.trim_heap()

        async with shared.queue.preparing:
            prepared = await in_thread(prepare)
        if isinstance(prepared, Refusal):
            raise prepared
        if shared.queue.is_ending:
            prepared[1].close()
            raise Cancelled("the server is shutting down")
        return prepared

    async def begin(self) -> Preparation:
        """The completion once its turn has come, which the stack ends.

        A request that has to wait keeps only its body in memory.
        """
        assert self.served is not None
        turns, max_s, stack = self.served.turns, self.shared.max_s, self.stack
        ((asked, completion),) = self.first or [await self.prepare()]
        self.first = ()
        turn = turns.turn(completion.pool_bytes)
        if turns.is_busy(completion.pool_bytes):
            completion.close()
            del asked, completion
            await stack.enter_async_context(turn)
            asked, completion = await self.prepare()
        else:
            await stack.enter_async_context(turn)
        stack.callback(_close, completion)
        self.request.state.usage = completion.usage
        if max_s is not None:
            loop = asyncio.get_running_loop()
            stack.callback(loop.call_later(max_s, completion.expire).cancel)
        return asked, completion

    async def events(self) -> AsyncGenerator[str]:
        """Server-sent events of the answer, once its model is in memory and its turn has come."""
        door, request = self.door, self.request
        try:
            if self.served is None:
                await self.seat()
            asked, completion = await self.begin()
            self.asked = asked
            running = await self.stack.enter_async_context(InThread(completion.steps()))
            async for step in running:
                for one in asked.reply.step(step, completion):
                    yield door.told(one)
            for one in asked.reply.end(completion):
                yield door.told(one)
        except Exception as error:  # noqa: BLE001 - the status is sent, so the error is an event
            refusal = self.shared.failures.refusal_of(error, request)
            if self.asked is None:
                name = "error" if door.names_events else None
                yield door.event(error_body(door.path, refusal, request.state.request_id), name)
            else:
                for one in self.asked.reply.failed(refusal, request.state.request_id):
                    yield door.told(one)
        except (asyncio.CancelledError, GeneratorExit):
            self.shared.figures.cancelled += 1
            request.state.is_gone = True
            raise
        if door.end:
            yield door.end


def _close(completion: Completion) -> None:
    completion.close()
    heap.trim_heap()  # a grammar may have taken megabytes


@asynccontextmanager
async def _while_connected(request: Request) -> AsyncIterator[None]:
    """Cancel the block when the client disconnects, and raise ClientDisconnect."""

    async def watch(block: asyncio.Timeout) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        block.reschedule(0)

    block = asyncio.timeout(None)
    try:
        async with block:
            task = asyncio.create_task(watch(block))
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    except TimeoutError:
        if not block.expired():
            raise
        raise ClientDisconnect from None
