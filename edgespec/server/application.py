"""The server's routes, which answer HTTP requests with a session.

Knows HTTP; `completions` interprets requests, `guarding` checks clients.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from edgespec.completions.answers import Answer
from edgespec.completions.completion import Completion
from edgespec.completions.decoding import decoded
from edgespec.completions.refusals import Refusal, refusal_of
from edgespec.completions.requests import ChatRequest, CommonRequest, CompletionRequest
from edgespec.completions.service import Completions
from edgespec.errors import Cancelled
from edgespec.memory import heap, process
from edgespec.server.bodies import RequestBodies
from edgespec.server.guarding import Guard
from edgespec.server.page import page
from edgespec.server.queueing import Queue, ServerFigures
from edgespec.session.asynchronous import InThread, in_thread
from edgespec.session.session import Session

R = TypeVar("R", bound=CommonRequest)
Handler = Callable[[Request], Awaitable[Response]]


class Service:
    """The routes and their shared state."""

    def __init__(
        self,
        session: Session,
        completions: Completions,
        guard: Guard,
        bodies: RequestBodies,
        queue: Queue,
        figures: ServerFigures,
    ) -> None:
        """`figures` counts the generations of `completions`."""
        self._session = session
        self._completions = completions
        self._guard = guard
        self._bodies = bodies
        self._queue = queue
        self._figures = figures
        self._loss: Refusal | None = None
        self._closing: set[asyncio.Future[None]] = set()
        """Tasks that end generations; referenced here because event loops keep weak references."""

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            # these routes need no key
            Route("/", self._guarded(page, needs_key=False)),
            Route("/page/{name}", self._guarded(page, needs_key=False)),
            Route("/health", self._guarded(self._health, needs_key=False)),
            Route("/metrics", self._guarded(self._metrics)),
            Route("/v1/models", self._guarded(self._models)),
            Route("/v1/models/{name:path}", self._guarded(self._model)),
            Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
            Route("/v1/completions", self._guarded(self._text), methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._not_found})

    def _guarded(self, handler: Handler, needs_key: bool = True) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                self._guard.check_host(request.headers)
                self._guard.check_origin(request.headers)
                if needs_key:
                    self._guard.check_key(request.headers)
                response = await handler(request)
            except ClientDisconnect:
                self._figures.cancelled += 1
                return Response(status_code=499)
            except Exception as error:  # noqa: BLE001 - every request gets a response
                response = self._refuse(error)
            self._figures.answers[response.status_code] += 1
            return response

        return guarded

    def _refusal_of(self, error: BaseException) -> Refusal:
        """The error response; the loss of the target is remembered."""
        refusal = refusal_of(error)
        if refusal.code == "target_lost":
            self._loss = _detached(refusal)
        return refusal

    def _refuse(self, error: BaseException) -> Response:
        refusal = self._refusal_of(error)
        return JSONResponse(refusal.content, refusal.status, refusal.headers)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = f"there is nothing at {request.method} {request.url.path}"
        response = self._refuse(Refusal(status, message, code="not_found"))
        self._figures.answers[status] += 1
        return response

    async def _health(self, request: Request) -> Response:
        if self._loss is not None:
            return self._refuse(self._loss)
        queue = self._queue
        return JSONResponse(
            {
                "status": "ok",
                "requests_in_progress": queue.n_in_progress,
                "slots_idle": queue.n_slots - queue.n_processing,
                "slots_processing": queue.n_processing,
            }
        )

    async def _metrics(self, request: Request) -> Response:
        lines = self._figures.lines(self._queue, self._session.paging, process.peak_rss_bytes())
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._completions.model:
            raise Refusal(404, f"this server has no model {name!r}", code="model_not_found")
        return JSONResponse(self._described)

    @property
    def _described(self) -> dict[str, Any]:
        info = self._session.target
        return {
            "id": self._completions.model,
            "object": "model",
            "created": 0,
            "owned_by": "edgespec",
            "context_length": info.n_ctx,
            "sampling": self._completions.sampling,
            "chat": self._completions.chat_refusal is None,
        }

    async def _chat(self, request: Request) -> Response:
        return await self._complete(request, ChatRequest, self._completions.chat)

    async def _text(self, request: Request) -> Response:
        return await self._complete(request, CompletionRequest, self._completions.text)

    async def _complete(
        self, request: Request, kind: type[R], start: Callable[[R], Completion]
    ) -> Response:
        client = request.client.host if request.client else ""
        async with AsyncExitStack() as stack:
            body = await stack.enter_async_context(self._bodies.of(request))
            stack.enter_context(self._queue.place(client))
            async with _while_connected(request):
                # refuse an invalid request now, before it waits for its turn
                parsed, completion = await self._prepared(body, kind, start)
                turn = self._queue.turn(client, completion.pool_bytes)
                if self._queue.is_busy(completion.pool_bytes):
                    completion.close()  # a waiting request keeps only its body in memory
                    await stack.enter_async_context(turn)
                    parsed, completion = await self._prepared(body, kind, start)
                else:
                    await stack.enter_async_context(turn)
                stack.callback(_close, completion)
                if not parsed.stream:
                    answer = await in_thread(completion.whole, completion.cancel)
                    _check_end(completion)
                    return JSONResponse(answer)
                running = await stack.enter_async_context(InThread(completion))
                chunks = _complete_chunks(running, completion)
                # errors before the first token are reported by the HTTP status
                first_chunks = [chunk async for chunk in _first(chunks, 2)]
            rest = stack.pop_all()
        return StreamingResponse(
            self._events(first_chunks, chunks, rest), media_type="text/event-stream"
        )

    async def _prepared(
        self, body: bytearray, kind: type[R], start: Callable[[R], Completion]
    ) -> tuple[R, Completion]:
        """The validated request and its completion, not started; one at a time, to limit memory."""

        def prepare() -> tuple[R, Completion] | Refusal:
            try:
                parsed = kind.parse(decoded(body))
                return parsed, start(parsed)
            except Exception as error:  # noqa: BLE001 - its traceback would keep the request alive
                return _detached(refusal_of(error))

        def prepare_and_trim() -> tuple[R, Completion] | Refusal:
            prepared = prepare()
            heap.trim_heap()
            return prepared

        async with self._queue.preparing:
            prepared = await in_thread(prepare_and_trim, lambda: None)
        if isinstance(prepared, Refusal):
            raise prepared
        if self._queue.is_ending:
            prepared[1].close()
            raise Cancelled("the server is shutting down")
        return prepared

    async def _events(
        self, first_chunks: list[Answer], chunks: AsyncIterator[Answer], stack: AsyncExitStack
    ) -> AsyncIterator[str]:
        """Server-sent events; at the end the generation and its place in the queue are released."""
        try:
            for chunk in first_chunks:
                yield _event(chunk)
            async for chunk in chunks:
                yield _event(chunk)
        except Exception as error:  # noqa: BLE001 - the status is sent, so the error is an event
            yield _event(self._refusal_of(error).content)
        except (asyncio.CancelledError, GeneratorExit):
            self._figures.cancelled += 1
            raise
        finally:
            # in a task of its own, because this one may be cancelled
            closing = asyncio.ensure_future(stack.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        yield "data: [DONE]\n\n"


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


def _detached(refusal: Refusal) -> Refusal:
    """The refusal without its causes, whose frames keep the request in memory."""
    refusal.__cause__ = refusal.__context__ = refusal.__traceback__ = None
    return refusal


def _check_end(completion: Completion) -> None:
    """Raise Cancelled if the server cut the text short.

    OpenAI's protocol has no finish reason for it, and clients must not take the text as complete.
    """
    if completion.is_cut:
        raise Cancelled("the server is shutting down")


async def _complete_chunks(
    chunks: AsyncIterator[Answer], completion: Completion
) -> AsyncIterator[Answer]:
    """The chunks of a stream. Raises Cancelled instead of the last one if it was cut short."""
    async for chunk in chunks:
        if any(choice["finish_reason"] for choice in chunk["choices"]):
            _check_end(completion)
        yield chunk


async def _first(chunks: AsyncIterator[Answer], most: int) -> AsyncIterator[Answer]:
    """The first `most` chunks, or all of a shorter stream."""
    for _ in range(most):
        try:
            yield await anext(chunks)
        except StopAsyncIteration:
            return


def _event(content: Any) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
