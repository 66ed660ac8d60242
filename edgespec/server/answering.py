"""One request for generated text, from its body to the end of its answer.

Waits for the model and for its turn, and streams or sends the answer. Knows HTTP and the queue;
what is asked and answered are the protocols' business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.protocols.request_parts import leaving_out
from edgespec.completions.refusals import Refusal, decoded
from edgespec.completions.running_request import Completion, Reply
from edgespec.errors import Cancelled
from edgespec.memory import heap
from edgespec.server.front import error_body, refusal_for
from edgespec.server.serving import Door, ServedText, event
from edgespec.session.asynchronous import in_loop, in_thread

if TYPE_CHECKING:
    from edgespec.server.application import Service

SILENCE_S = 5.0
"""Seconds of silence after which a comment is sent, so that nobody on the way gives up."""
COMMENT = ": waiting\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from holding events back."""

Put = Callable[[str | None], None]
"""Takes the parts of a stream, and None at its end."""


async def complete(service: Service, door: Door, request: Request) -> Response:
    """The answer of the route `door`."""
    async with AsyncExitStack() as stack:
        body = await stack.enter_async_context(service.bodies.of(request))
        stack.enter_context(service.queue.place())
        async with _while_connected(request):
            model, streams = await service.wanted(body)
            one = _OneAnswer(service, request, body, door, model, stack)
            if service.host.is_ready(model) or not streams:
                await one.seat()
                # refuse an invalid request now, before it waits for its turn
                one.prepared = await one.prepare()
                if not one.prepared.reply.streams:
                    completion = await one.begin()
                    whole = await in_thread(completion.whole, completion.cancel)
                    return JSONResponse(whole)
        one.stack = stack.pop_all()
    return StreamedAnswer(one)


@dataclass(slots=True)
class _OneAnswer:
    """The steps of answering one request; what it holds is in `stack`."""

    service: Service
    request: Request
    body: bytearray
    door: Door
    model: HostedModel
    stack: AsyncExitStack
    served: ServedText | None = None
    """The loaded model; None until it is in memory."""
    prepared: Completion | None = None
    """The request as it was read on arrival, not started."""
    reply: Reply | None = None
    """The request that is being answered, once its turn has come."""

    @property
    def silence_s(self) -> float | None:
        """Seconds after which `waiting` is sent; None: never, as nothing may stand between lines of
        JSON."""
        return SILENCE_S if self.door.told is event else None

    def waiting(self) -> str:
        """Text for a stream in silence: the protocol's own event once the turn has come, which
        some clients count as no comment is, or a comment."""
        if self.served is None:
            return f": {self.service.host.told_progress(self.model)}\n\n"
        told = self.reply.waiting() if self.reply else ()
        return "".join(map(self.door.told, told)) or COMMENT

    async def seat(self) -> None:
        """Wait until the model is in memory."""
        using = self.service.host.using(self.model)
        self.served = await self.stack.enter_async_context(using)

    async def prepare(self) -> Completion:
        """The validated request, not started; one at a time, to limit memory."""
        assert self.served is not None
        completions, queue = self.served.completions, self.service.queue
        stored = [self.service.stored] if self.door.stores else []

        def prepare() -> Completion | Refusal:
            try:
                with leaving_out(self.request.state.ignored):
                    reply = self.door.dialect(completions, *stored, decoded(self.body))
                return reply.begin(self.request.state.client)
            except Exception as error:  # noqa: BLE001 - its traceback would keep the request alive
                return refusal_for(error, self.request.scope)
            finally:
                heap.trim_heap()

        async with queue.preparing:
            prepared = await in_thread(prepare)
        if isinstance(prepared, Refusal):
            raise prepared
        if queue.is_ending:
            prepared.close()
            raise Cancelled("the server is shutting down")
        return prepared

    async def begin(self) -> Completion:
        """The completion once its turn has come, which the stack ends.

        A request that has to wait keeps only its body in memory.
        """
        assert self.served is not None
        turns, max_s, stack = self.served.turns, self.service.max_s, self.stack
        completion = self.prepared or await self.prepare()
        self.prepared = None
        turn = turns.turn(completion.pool_bytes)
        if turns.is_busy(completion.pool_bytes):
            completion.close()
            del completion
            await stack.enter_async_context(turn)
            completion = await self.prepare()
        else:
            await stack.enter_async_context(turn)
        stack.callback(heap.trim_heap)  # a grammar may have taken megabytes
        stack.callback(completion.close)
        self.request.state.usage = completion.usage
        self.reply = completion.reply
        if max_s is not None:
            loop = asyncio.get_running_loop()
            stack.callback(loop.call_later(max_s, completion.expire).cancel)
        return completion

    async def write(self, put: Put) -> None:
        """Put the parts of a stream, once the model is in memory and the turn has come."""
        door, scope = self.door, self.request.scope
        try:
            if self.served is None:
                await self.seat()
            completion = await self.begin()
            async with aclosing(in_loop(completion.steps(), completion.cancel)) as steps:
                async for step in steps:
                    for one in completion.reply.step(step, completion):
                        put(door.told(one))
            for one in completion.reply.end(completion):
                put(door.told(one))
        except Exception as error:  # noqa: BLE001 - the status is sent, so the error is an event
            refusal = refusal_for(error, scope)
            failed = [error_body(refusal, scope)]
            if self.reply is not None:
                failed = [*self.reply.failed(refusal, scope["state"]["request_id"])]
            for one in failed:
                put(door.told(one))
        finally:
            put(door.end)
            put(None)


class StreamedAnswer(StreamingResponse):
    """A response that is written part by part, whose headers are sent at once."""

    def __init__(self, answer: _OneAnswer) -> None:
        kind = "application/x-ndjson" if answer.silence_s is None else "text/event-stream"
        super().__init__(self._sent(), media_type=kind, headers=HEADERS)
        self._answer = answer
        self._parts: asyncio.Queue[str | None] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._answer.write(self._parts.put_nowait))
        try:
            await super().__call__(scope, receive, send)
        finally:
            writing.cancel()
            await asyncio.wait({writing})
            await self._answer.stack.aclose()

    async def _sent(self) -> AsyncIterator[str]:
        while True:
            try:
                async with asyncio.timeout(self._answer.silence_s):
                    part = await self._parts.get()
            except TimeoutError:
                part = self._answer.waiting()
            if part is None:
                return
            if part:
                yield part


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
