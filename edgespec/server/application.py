"""The server's routes, which answer HTTP requests with a session.

Knows HTTP; `completions` interprets requests, `front` and `guarding` check clients.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from edgespec.completions import tokenizing
from edgespec.completions.answers import Answer
from edgespec.completions.completion import Completion
from edgespec.completions.decoding import decoded
from edgespec.completions.protocols.dialect import (
    Asked,
    Dialect,
    chat_dialect,
    openai_error,
    text_dialect,
)
from edgespec.completions.protocols.message_replies import messages_dialect, messages_error
from edgespec.completions.protocols.message_requests import CountRequest
from edgespec.completions.protocols.response_replies import responses_dialect
from edgespec.completions.protocols.stored_responses import StoredResponses
from edgespec.completions.refusals import Refusal, refusal_of
from edgespec.completions.service import Completions
from edgespec.errors import Cancelled
from edgespec.memory import heap, process, requests
from edgespec.server.access_log import AccessLog
from edgespec.server.bodies import RequestBodies
from edgespec.server.budget_request import budget_of
from edgespec.server.front import GONE
from edgespec.server.guarding import Guard
from edgespec.server.openapi import openapi
from edgespec.server.page import page
from edgespec.server.queueing import Queue, ServerFigures
from edgespec.server.streaming import DONE, EventStream, event
from edgespec.session.asynchronous import InThread, in_thread
from edgespec.session.session import Session
from edgespec.session.tokenizing import Tokenizer

Handler = Callable[[Request], Awaitable[Response]]
Preparation = tuple[Asked, Completion]
"""A request that has been read, and its completion, which has not been started."""


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
        log: AccessLog,
        max_s: float | None = None,
    ) -> None:
        """`figures` counts the generations of `completions`, which take at most `max_s` seconds
        each."""
        self._session = session
        self._completions = completions
        self._guard = guard
        self._bodies = bodies
        self._queue = queue
        self._figures = figures
        self._log = log
        self._max_s = max_s
        self._tokenizer = session.tokenizer
        self._created = int(time.time())
        self._loss: Refusal | None = None
        self._closing: set[asyncio.Future[None]] = set()
        """Tasks that end generations; referenced here because event loops keep weak references."""

    def application(self) -> Starlette:
        """The ASGI application."""
        completions, stored = self._completions, StoredResponses(requests.STORED_BYTES)
        messages = messages_dialect(completions)
        asked = [
            ("/models", self._models, "GET"),
            ("/models/{name:path}", self._model, "GET"),
            ("/chat/completions", self._answering(chat_dialect(completions)), "POST"),
            ("/completions", self._answering(text_dialect(completions)), "POST"),
            ("/responses", self._answering(responses_dialect(completions, stored)), "POST"),
            ("/tokenize", self._tokenize, "POST"),
            ("/detokenize", self._detokenize, "POST"),
            ("/budget", self._budget, "GET"),
            ("/budget", self._set_budget, "POST"),
        ]
        routes = [
            # these routes need no key
            Route("/", self._guarded(page, needs_key=False)),
            Route("/page/{name}", self._guarded(page, needs_key=False)),
            Route("/openapi.json", self._guarded(openapi, needs_key=False)),
            Route("/health", self._guarded(self._health, needs_key=False)),
            Route("/v1/health", self._guarded(self._health, needs_key=False)),
            Route("/metrics", self._guarded(self._metrics)),
            *(
                Route(version + path, self._guarded(handler), methods=[method])
                for version in ("/v1", "")
                for path, handler, method in asked
            ),
            *(
                Route(
                    f"{version}/messages{path}",
                    self._guarded(handler, error_body=messages_error),
                    methods=["POST"],
                )
                for version in ("/v1", "")
                for path, handler in (
                    ("", self._answering(messages)),
                    ("/count_tokens", self._count_tokens),
                )
            ),
        ]
        application = Starlette(routes=routes, exception_handlers={HTTPException: self._not_found})
        application.router.redirect_slashes = False  # `Front` has removed the slash
        return application

    def _guarded(
        self,
        handler: Handler,
        needs_key: bool = True,
        error_body: Callable[[Refusal, str], Answer] = openai_error,
    ) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                if needs_key:
                    self._guard.check_key(request.headers)
                return await handler(request)
            except ClientDisconnect:
                self._figures.cancelled += 1
                request.state.is_gone = True
                return Response(status_code=GONE)
            except Exception as error:  # noqa: BLE001 - every request gets a response
                return self._refuse(error, request, error_body)

        return guarded

    def _refusal_of(self, error: BaseException, request: Request) -> Refusal:
        """The error response; failures are logged, and the loss of the target is remembered."""
        refusal = refusal_of(error)
        if refusal.code == "target_lost":
            self._loss = _detached(refusal)
        if refusal.status == 500 and refusal is not error:
            told = "".join(traceback.format_exception(error))
            self._log.failure(request.state.request_id, told)
        return refusal

    def _refuse(
        self,
        error: BaseException,
        request: Request,
        error_body: Callable[[Refusal, str], Answer] = openai_error,
    ) -> Response:
        refusal = self._refusal_of(error, request)
        content = error_body(refusal, request.state.request_id)
        return JSONResponse(content, refusal.status, refusal.headers)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = f"there is nothing at {request.method} {request.url.path}"
        return self._refuse(Refusal(status, message, code="not_found"), request)

    async def _health(self, request: Request) -> Response:
        if self._loss is not None:
            return self._refuse(self._loss, request)
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
            "created": self._created,
            "owned_by": "edgespec",
            "context_length": info.n_ctx,
            "sampling": self._completions.sampling,
            "chat": self._completions.chat_refusal is None,
        }

    async def _count_tokens(self, request: Request) -> Response:
        def count(body: bytearray) -> int:
            asked = CountRequest.parse(decoded(body))
            return self._completions.count_tokens(asked.chat_request())

        async with self._bodies.of(request) as body, self._queue.preparing:
            counted = await in_thread(partial(count, body), lambda: None)
        return JSONResponse({"input_tokens": counted})

    async def _tokenize(self, request: Request) -> Response:
        return await self._tokens(request, tokenizing.tokenize)

    async def _detokenize(self, request: Request) -> Response:
        return await self._tokens(request, tokenizing.detokenize)

    async def _budget(self, request: Request) -> Response:
        return JSONResponse(asdict(self._session.budget))

    async def _set_budget(self, request: Request) -> Response:
        async with self._bodies.of(request) as body:
            size = budget_of(decoded(body))
        await in_thread(partial(self._session.set_memory_budget, size), lambda: None)
        return await self._budget(request)

    async def _tokens(
        self, request: Request, answer: Callable[[Tokenizer, object], dict[str, Any]]
    ) -> Response:
        async with self._bodies.of(request) as body, self._queue.preparing:
            convert = partial(answer, self._tokenizer)
            return JSONResponse(await in_thread(lambda: convert(decoded(body)), lambda: None))

    def _answering(self, dialect: Dialect) -> Handler:
        """The handler of a route whose requests and answers are in `dialect`."""

        async def answer(request: Request) -> Response:
            try:
                return await self._complete(request, dialect)
            except ClientDisconnect:
                raise
            except Exception as error:  # noqa: BLE001 - every request gets a response
                return self._refuse(error, request, dialect.error)

        return answer

    async def _complete(self, request: Request, dialect: Dialect) -> Response:
        async with AsyncExitStack() as stack:
            body = await stack.enter_async_context(self._bodies.of(request))
            stack.enter_context(self._queue.place())

            prepare = partial(self._prepared, request, body, dialect)
            async with _while_connected(request):
                # refuse an invalid request now, before it waits for its turn
                first = [await prepare()]
                if not first[0][0].streams:
                    asked, completion = await self._begun(request, first, prepare, stack)
                    answer = await in_thread(completion.whole, completion.cancel)
                    _check_end(completion)
                    return JSONResponse(asked.reply.whole(answer, completion))
            rest = stack.pop_all()
        begin = partial(self._begun, request, first, prepare, rest)
        keep_closing = partial(self._keep_closing, request)
        return EventStream(self._events(request, dialect, begin, rest), rest, keep_closing)

    async def _begun(
        self,
        request: Request,
        first: list[Preparation],
        prepare: Callable[[], Awaitable[Preparation]],
        stack: AsyncExitStack,
    ) -> Preparation:
        """The completion once its turn has come, which `stack` ends.

        It is taken out of `first`; a request that has to wait keeps only its body in memory.
        """
        asked, completion = first.pop()
        turn = self._queue.turn(completion.pool_bytes)
        if self._queue.is_busy(completion.pool_bytes):
            completion.close()
            del asked, completion
            await stack.enter_async_context(turn)
            asked, completion = await prepare()
        else:
            await stack.enter_async_context(turn)
        stack.callback(_close, completion)
        request.state.usage = completion.usage
        if self._max_s is not None:
            loop = asyncio.get_running_loop()
            stack.callback(loop.call_later(self._max_s, completion.expire).cancel)
        return asked, completion

    async def _prepared(self, request: Request, body: bytearray, dialect: Dialect) -> Preparation:
        """The validated request and its completion, not started; one at a time, to limit memory."""

        def prepare() -> Preparation | Refusal:
            try:
                asked = dialect.read(decoded(body))
                return asked, asked.start()
            except Exception as error:  # noqa: BLE001 - its traceback would keep the request alive
                return _detached(self._refusal_of(error, request))

        def prepare_and_trim() -> Preparation | Refusal:
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
        self,
        request: Request,
        dialect: Dialect,
        begin: Callable[[], Awaitable[Preparation]],
        stack: AsyncExitStack,
    ) -> AsyncGenerator[str]:
        """Server-sent events of a completion, once its turn has come."""
        asked: Asked | None = None
        try:
            asked, completion = await begin()
            running = await stack.enter_async_context(InThread(completion))
            async for chunk in _complete_chunks(running, completion):
                for one in asked.reply.chunk(chunk, completion):
                    yield event(one.content, one.name)
            for one in asked.reply.end(completion):
                yield event(one.content, one.name)
        except Exception as error:  # noqa: BLE001 - the status is sent, so the error is an event
            refusal = self._refusal_of(error, request)
            if asked is None:
                name = "error" if dialect.names_events else None
                yield event(dialect.error(refusal, request.state.request_id), name)
            else:
                for one in asked.reply.failed(refusal, request.state.request_id):
                    yield event(one.content, one.name)
        except (asyncio.CancelledError, GeneratorExit):
            self._figures.cancelled += 1
            request.state.is_gone = True
            raise
        if not dialect.names_events:
            yield DONE

    def _keep_closing(self, request: Request, closing: asyncio.Future[None]) -> None:
        request.state.closing = closing
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


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
