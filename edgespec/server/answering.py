"""One request for generated text, from its body to the end of its answer.

Waits for the model and for its turn, and streams or sends the answer. Knows HTTP and the queue;
what is asked and answered are the protocols' business.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from edgespec.completions.answers import Answer
from edgespec.completions.calls import written
from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.protocols.request_parts import leaving_out
from edgespec.completions.refusals import Refusal, decoded
from edgespec.completions.running_request import Completion, Reply
from edgespec.errors import Cancelled
from edgespec.memory import heap
from edgespec.server.front import error_body, refusal_for
from edgespec.server.hosting import LoadedModel
from edgespec.session.asynchronous import in_loop, in_thread

if TYPE_CHECKING:
    from edgespec.server.application import Service

T = TypeVar("T")

SILENCE_S = 5.0
"""Seconds of silence after which a comment is sent, so that nobody on the way gives up."""
COMMENT = ": waiting\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from holding events back."""
DONE = "data: [DONE]\n\n"
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def event(content: Answer) -> str:
    """A server-sent event with `content` as JSON, and its type as its name if it has one."""
    named = f"event: {content['type']}\n" if "type" in content else ""
    text = written(content)
    # clients split events by str.splitlines, which takes more than line feeds for line ends
    text = _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", text)
    return f"{named}data: {text}\n\n"


def line(content: Answer) -> str:
    """A line of a stream of JSON."""
    return f"{written(content)}\n"


@dataclass(frozen=True, slots=True)
class Door:
    """A protocol of requests for generated text, whatever model answers."""

    dialect: Callable[..., Reply]
    """Reads a request, given what writes answers and the body."""
    end: str = ""
    """Text behind the last event of a stream."""
    told: Callable[[Answer], str] = event
    """A part of a stream with an object: an event, beside which comments may stand, or a line."""


async def complete(service: Service, door: Door, request: Request) -> Response:
    """The answer to a request."""
    async with AsyncExitStack() as stack:
        body = await stack.enter_async_context(service.queue.body_of(request))
        stack.enter_context(service.queue.place())
        model, streams = await service.wanted(body)
        one = _OneAnswer(service, request, body, door, model, stack)
        if service.host.is_ready(model) or not streams:
            whole = await while_connected(request, one.whole())
            if whole is not None:
                return Response(written(whole), media_type="application/json")
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
    served: LoadedModel | None = None
    """The loaded model; None until it is in memory."""
    prepared: Completion | None = None
    """The request as it was read on arrival, not started."""
    reply: Reply | None = None
    """The request that is being answered, once its turn has come."""

    async def whole(self) -> Answer | None:
        """The whole answer; None if it is to be streamed. Raises Refusal before it waits for its
        turn if the request is invalid."""
        self.prepared = await self.prepare()
        if self.prepared.reply.streams:
            return None
        completion = await self.begin()
        return await in_thread(completion.whole, completion.cancel)

    async def prepare(self) -> Completion:
        """The validated request, not started, once the model is in memory; one at a time, to limit
        memory."""
        queue, request = self.service.queue, self.request
        using = self.service.host.using(self.model)
        served: Any = self.served or await self.stack.enter_async_context(using)
        self.served = served

        def prepare() -> Completion | Refusal:
            try:
                with leaving_out(request.state.ignored):
                    reply = self.door.dialect(served.completions, decoded(self.body))
                return reply.begin(request.state.client)
            except Exception as error:  # noqa: BLE001 - its traceback would keep the request alive
                return refusal_for(error, request.scope)
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
        completion = self.prepared or await self.prepare()
        self.prepared = None
        assert self.served is not None
        turns, n_bytes, max_s = self.served.turns, completion.pool_bytes, self.service.max_s
        if waits := turns.is_busy(n_bytes):
            completion.close()
            del completion
        await self.stack.enter_async_context(turns.turn(n_bytes))
        if waits:
            completion = await self.prepare()
        self.stack.callback(heap.trim_heap)  # a grammar may have taken megabytes
        self.stack.callback(completion.close)
        self.request.state.usage = completion.usage
        self.reply = completion.reply
        if max_s is not None:
            loop = asyncio.get_running_loop()
            self.stack.callback(loop.call_later(max_s, completion.expire).cancel)
        return completion

    async def write(self, put: Callable[[str | None], None]) -> None:
        """Put the parts of a stream and then None, once the model is in memory and the turn has
        come."""
        door, scope = self.door, self.request.scope
        try:
            completion = await self.begin()
            async with aclosing(in_loop(completion.steps(), completion.cancel)) as steps:
                async for step in steps:
                    for one in completion.reply.step(step, completion):
                        put(door.told(one))
            for one in completion.reply.end(completion):
                put(door.told(one))
        except Exception as error:  # noqa: BLE001 - the status is sent, so the error is an event
            refusal = refusal_for(error, scope)
            failed = self.reply.failed(refusal) if self.reply else ()
            for one in [*failed] or [error_body(refusal, scope)]:
                put(door.told(one))
        finally:
            put(door.end)
            put(None)

    def waiting(self) -> str:
        """Text for a stream in silence: the protocol's own event once the turn has come, which
        some clients count as no comment is, or a comment."""
        if self.served is None:
            return f": {self.service.host.told_progress(self.model)}\n\n"
        told = self.reply.waiting() if self.reply else ()
        return "".join(map(self.door.told, told)) or COMMENT


class StreamedAnswer(StreamingResponse):
    """A response that is written part by part, whose headers are sent at once."""

    def __init__(self, answer: _OneAnswer) -> None:
        self._has_events = answer.door.told is event
        kind = "text/event-stream" if self._has_events else "application/x-ndjson"
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
            try:  # nothing may stand between lines of JSON
                async with asyncio.timeout(SILENCE_S if self._has_events else None):
                    part = await self._parts.get()
            except TimeoutError:
                part = self._answer.waiting()
            if part is None:
                return
            if part:
                yield part


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects. Raises
    ClientDisconnect."""
    working = asyncio.ensure_future(work)
    tasks = {working, asyncio.ensure_future(request.receive())}  # the body has come: it is the end
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if working.cancelled():
        raise ClientDisconnect
    return working.result()
