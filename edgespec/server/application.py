"""The server's routes, which answer HTTP requests with the models of a host, and its page.

Knows HTTP; `completions` interprets requests, `answering` runs them, `front` and `guarding` check
clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import cache, partial
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from edgespec import extras
from edgespec.completions import tokenizing
from edgespec.completions.decoding import decoded
from edgespec.completions.embeddings import EmbeddingRequest, Embeddings
from edgespec.completions.protocols.message_requests import CountRequest
from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.protocols.request_parts import leaving_out
from edgespec.completions.refusals import Refusal, overloaded
from edgespec.completions.request_limits import ANSWER_BYTES
from edgespec.completions.requests import ChatRequest
from edgespec.memory import heap
from edgespec.server import llama_routes, ollama_routes
from edgespec.server.answering import Answers
from edgespec.server.budget_request import BudgetLimit
from edgespec.server.front import GONE
from edgespec.server.guarding import Guard
from edgespec.server.openapi import openapi
from edgespec.server.serving import DOORS, ServedText, ServedVectors
from edgespec.session.asynchronous import in_thread
from edgespec.session.session import Session

Handler = Callable[[Request], Awaitable[Response]]
_SHARED = (
    "several models share the budget, which stays as it is: start the server again with another"
)


class Service:
    """The routes and their shared state."""

    def __init__(
        self,
        answers: Answers,
        guard: Guard,
        budget_limit: BudgetLimit,
        on_budget: Callable[[int | str], None],
    ) -> None:
        """`on_budget` is told the budget that a client has given."""
        self._host, self._queue, self._bodies = answers.host, answers.queue, answers.bodies
        self._figures, self._failures = answers.figures, answers.failures
        self._on_budget = on_budget
        self._budget_limit = budget_limit
        self._guard = guard
        self._answers = answers
        self._embedding = asyncio.Lock()
        """Held while vectors are computed, whose answer has memory of its own in the plan."""
        self._changing_budget = asyncio.Lock()
        """Held so that the budget told last is the session's."""
        self._created = int(time.time())

    def application(self) -> Starlette:
        """The ASGI application."""
        asked: list[tuple[str, Handler, str]] = [
            ("/models", self._models, "GET"),
            ("/models/{name:path}", self._model, "GET"),
            ("/embeddings", self._embeddings, "POST"),
            ("/rerank", self._rerank, "POST"),
            ("/props", self._props, "GET"),
            ("/slots", self._slots, "GET"),
            ("/api/tags", self._tags, "GET"),
            ("/api/version", self._version, "GET"),
            ("/api/show", self._show, "POST"),
            ("/budget", self._budget, "GET POST"),
            *((door.path, partial(self._answers.complete, door), "POST") for door in DOORS),
            *((path, partial(self._computed, by), "POST") for path, by in _COMPUTED.items()),
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
                Route(version + path, self._guarded(handler), methods=methods.split())
                for version in ("/v1", "")
                for path, handler, methods in asked
            ),
        ]
        application = Starlette(routes=routes, exception_handlers={HTTPException: self._not_found})
        application.router.redirect_slashes = False  # `Front` has removed the slash
        return application

    def _guarded(self, handler: Handler, needs_key: bool = True) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                if needs_key:
                    request.state.client = self._guard.check_key(request.headers)
                return await handler(request)
            except ClientDisconnect:
                self._figures.cancelled += 1
                request.state.is_gone = True
                return Response(status_code=GONE)
            except Exception as error:  # noqa: BLE001 - every request gets a response
                return self._failures.refuse(error, request)

        return guarded

    async def _not_found(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, headers = request.scope["path"], dict(error.headers or {})
        refusal = Refusal(404, f"there is nothing at {request.method} {path}", code="not_found")
        if allowed := headers.get("Allow"):
            message = f"{path} takes {allowed}, not {request.method}"
            refusal = Refusal(405, message, code="method_not_allowed", headers=headers)
        return self._failures.refuse(refusal, request)

    async def _rerank(self, request: Request) -> Response:
        message = "this server does not rank texts: compare vectors of /v1/embeddings"
        raise Refusal(400, message, code="unsupported_route")

    async def _health(self, request: Request) -> Response:
        if self._failures.loss is not None:
            return self._failures.refuse(self._failures.loss, request)
        told = {
            "status": "ok",
            "requests_in_progress": self._queue.n_in_progress,
            "slots_idle": self._queue.n_slots - self._queue.n_processing,
            "slots_processing": self._queue.n_processing,
        }
        return JSONResponse(told)

    async def _metrics(self, request: Request) -> Response:
        text = self._figures.text(self._queue, self._host)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _models(self, request: Request) -> Response:
        models = [*map(self._described, self._host.models)]
        ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"], "has_more": False}
        return JSONResponse({"object": "list", "data": models, **ends})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if len(self._host.models) == 1 and name != self._host.models[0].name:
            raise Refusal(404, f"this server has no model {name!r}", code="model_not_found")
        return JSONResponse(self._described(self._host.named(name)))

    def _described(self, model: HostedModel) -> dict[str, Any]:
        served = self._host.served(model)
        return {
            "id": model.name,
            "object": "model",
            "type": "model",
            "display_name": model.name,
            "created": self._created,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._created)),
            "owned_by": "edgespec",
            "kind": "embedding" if model.embeds else "text",
            "size_bytes": model.size_bytes,
            "smallest_budget_bytes": model.smallest_bytes,
            "status": self._host.state(model),
            **(served.details if served is not None else {}),
        }

    async def _props(self, request: Request) -> Response:
        async with self._host.using(self._host.named(None, False)) as served:
            n_ctx, n_slots = served.model.target.n_ctx, self._queue.n_slots
            return JSONResponse(llama_routes.props(served.completions, n_ctx, n_slots))

    async def _slots(self, request: Request) -> Response:
        async with self._host.using(self._host.named(None, False)) as served:
            n_ctx, n_busy = served.model.target.n_ctx, self._queue.n_processing
            slots = range(self._queue.n_slots)
            told = [{"id": one, "n_ctx": n_ctx, "is_processing": one < n_busy} for one in slots]
            return JSONResponse(told)

    async def _tags(self, request: Request) -> Response:
        return JSONResponse({"models": [*map(ollama_routes.tag, self._host.models)]})

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": extras.installed_version()})

    async def _show(self, request: Request) -> Response:
        async with self._bodies.of(request) as body:
            fields = llama_routes.as_fields(decoded(body))
        name = fields.get("model") or fields.get("name")
        model = self._host.named(str(name) if name else None)
        served = self._host.served(model)
        template = served.completions.template if isinstance(served, ServedText) else ""
        info = served and served.model.target
        return JSONResponse(ollama_routes.shown(model, info, template))

    async def _computed(
        self, compute: Callable[[ServedText, object], dict[str, Any]], request: Request
    ) -> Response:
        """The answer that `compute` gives with the model that a request names, and its body."""
        async with AsyncExitStack() as stack:
            body = await stack.enter_async_context(self._bodies.of(request))
            model, _ = await self._answers.wanted(body)
            served: ServedText = await stack.enter_async_context(self._host.using(model))
            await stack.enter_async_context(self._queue.preparing)

            def computed() -> dict[str, Any]:
                with leaving_out(request.state.left_out):
                    return compute(served, decoded(body))

            return JSONResponse(await in_thread(computed))

    async def _embeddings(self, request: Request) -> Response:
        async with AsyncExitStack() as stack:
            body = await stack.enter_async_context(self._bodies.of(request))
            stack.enter_context(self._queue.place())
            model, _ = await self._answers.wanted(body, embeds=True)
            served: ServedVectors = await stack.enter_async_context(self._host.using(model))
            await stack.enter_async_context(self._embedding)

            def compute() -> Iterator[str]:
                with leaving_out(request.state.left_out):
                    asked = EmbeddingRequest.parse(decoded(body))
                answer = Embeddings(served.model, served.name, asked, ANSWER_BYTES)
                answer.compute()
                heap.trim_heap()
                return answer.pieces()

            pieces = await in_thread(compute, served.model.cancel)
            return StreamingResponse(pieces, media_type="application/json")

    async def _budget(self, request: Request) -> Response:
        if request.method == "POST":
            await self._set_budget(request)
        most_bytes = self._budget_limit.most_bytes
        return JSONResponse(asdict(self._loaded.budget) | {"most_bytes": most_bytes})

    async def _set_budget(self, request: Request) -> None:
        self._guard.check_admin(request.headers)
        async with self._bodies.of(request) as body:
            size = self._budget_limit.budget_of(decoded(body))
        session = self._loaded

        def change() -> None:
            session.set_memory_budget(size)
            self._on_budget(size)

        with self._host.staying():  # the next model is loaded with the new budget
            async with self._changing_budget:
                await in_thread(change)

    @property
    def _loaded(self) -> Session:
        """The loaded model that writes texts. Raises Refusal if there is none, and if several share
        the budget."""
        if self._host.together:
            raise Refusal(409, _SHARED, code="budget_shared")
        if not isinstance(served := self._host.current, ServedText):
            raise overloaded("no model that writes texts is loaded", "not_loaded")
        return served.model


_COMPUTED: dict[str, Callable[[ServedText, object], dict[str, Any]]] = {
    "/messages/count_tokens": lambda served, content: {
        "input_tokens": served.completions.count_tokens(CountRequest.parse(content).chat_request())
    },
    "/chat/completions/input_tokens": lambda served, content: {
        "input_tokens": served.completions.count_tokens(ChatRequest.parse(content))
    },
    "/tokenize": lambda served, content: tokenizing.tokenize(served.model.tokenizer, content),
    "/detokenize": lambda served, content: tokenizing.detokenize(served.model.tokenizer, content),
    "/apply-template": lambda served, content: {
        "prompt": served.completions.rendered(ChatRequest.parse(content))
    },
}
"""Answers without a text, given the model that a request names and its body."""


_STATIC = files("edgespec.server").joinpath("static")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
"""Kinds of files of the page; others, such as licences, are not served."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
"""Content security policy; only the sanitiser may turn text into elements."""


async def page(request: Request) -> Response:
    """Response with the page or one of its files. Raises Refusal for another path."""
    name = request.path_params.get("name", "index.html")
    kind = _TYPES.get(PurePosixPath(name).suffix)
    if kind is None or not (_STATIC / name).is_file():
        raise Refusal(404, f"there is nothing at {request.scope['path']}", code="not_found")
    headers = {
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response(static_file(name), headers=headers, media_type=kind)


@cache
def static_file(name: str) -> bytes:
    """The content of a file that comes with the server."""
    return (_STATIC / name).read_bytes()
