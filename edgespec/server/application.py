"""The server's routes, which answer HTTP requests with the models of a host, and its page.

Knows HTTP; `completions` interprets requests, `answering` runs them, `front` and `guarding` check
clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from edgespec import extras
from edgespec.completions import llama_fields
from edgespec.completions.embeddings import EmbeddingRequest, Embeddings
from edgespec.completions.protocols.message_requests import CountRequest
from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.protocols.request_parts import leaving_out
from edgespec.completions.protocols.response_replies import StoredResponses
from edgespec.completions.refusals import Refusal, decoded, overloaded
from edgespec.completions.request_limits import ANSWER_BYTES, STORED_BYTES
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.tokenizing import DetokenizeRequest, TokenizeRequest, detokenize, tokenize
from edgespec.memory import heap
from edgespec.server import llama_routes, ollama_routes
from edgespec.server.answering import complete
from edgespec.server.front import refused
from edgespec.server.guarding import BudgetLimit, BudgetRequest, Guard
from edgespec.server.hosting import ModelHost
from edgespec.server.page import page
from edgespec.server.queueing import Queue, RequestBodies, ServerFigures
from edgespec.server.serving import DOORS, Door, ServedText
from edgespec.session.asynchronous import in_thread
from edgespec.session.session import Session


@dataclass(slots=True)
class Service:
    """The answers of the routes, and their shared state."""

    host: ModelHost
    queue: Queue
    bodies: RequestBodies
    guard: Guard
    figures: ServerFigures
    budget_limit: BudgetLimit
    on_budget: Callable[[int | str], None]
    """Called with the budget that a client has given."""
    max_s: float | None = None
    """Most seconds of an answer from its turn on; None: no limit."""
    stored: StoredResponses = field(default_factory=lambda: StoredResponses(STORED_BYTES))
    created: int = field(default_factory=lambda: int(time.time()))
    embedding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while vectors are computed, whose answer has memory of its own in the plan."""
    changing_budget: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held so that the budget told last is the session's."""

    def application(self) -> Starlette:
        """The ASGI application."""
        application = Starlette(
            routes=[
                Route(version + entry.path, self._guarded(entry), methods=[entry.method])
                for version in ("", "/v1")
                for entry in TABLE
            ],
            exception_handlers={HTTPException: _refused, Exception: _refused},
        )
        application.router.redirect_slashes = False  # `Front` has removed the slash
        return application

    def _guarded(self, entry: TableRow) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            if entry.needs_key:
                request.state.client = self.guard.check_key(request.headers)
            return await entry.answer(self, request)

        return guarded

    async def rerank(self, request: Request) -> Response:
        message = "this server does not rank texts: compare vectors of /v1/embeddings"
        raise Refusal(400, message, code="unsupported_route")

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(document())

    async def health(self, request: Request) -> Response:
        if self.figures.loss is not None:
            raise self.figures.loss
        told = {
            "status": "ok",
            "requests_in_progress": self.queue.n_in_progress,
            "slots_idle": self.queue.n_slots - self.queue.n_processing,
            "slots_processing": self.queue.n_processing,
        }
        return JSONResponse(told)

    async def metrics(self, request: Request) -> Response:
        paging, current = [one.model.paging for one in self.host.loaded], self.host.current
        values = {
            "requests_in_progress": self.queue.n_in_progress,
            "requests_processing": self.queue.n_processing,
            "slots": self.queue.n_slots,
            "passes_total": sum(one.passes for one in paging),
            "read_bytes_total": sum(one.bytes_read for one in paging),
            "stall_seconds_total": sum(one.stall_s for one in paging),
            "model_loads_total": self.host.n_loads,
        }
        if current is not None:
            values["memory_budget_bytes"] = current.model.plan.budget_bytes
        text = self.figures.text(values)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        models = [*map(self._described, self.host.models)]
        ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"], "has_more": False}
        return JSONResponse({"object": "list", "data": models, **ends})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if len(self.host.models) == 1 and name != self.host.models[0].name:
            raise Refusal(404, f"this server has no model {name!r}", code="model_not_found")
        return JSONResponse(self._described(self.host.named(name)))

    def _described(self, model: HostedModel) -> dict[str, Any]:
        served = self.host.served(model)
        return {
            "id": model.name,
            "object": "model",
            "type": "model",
            "display_name": model.name,
            "created": self.created,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.created)),
            "owned_by": "edgespec",
            "kind": "embedding" if model.embeds else "text",
            "size_bytes": model.size_bytes,
            "smallest_budget_bytes": model.smallest_bytes,
            "status": self.host.state(model),
            **(served.details if served is not None else {}),
        }

    async def props(self, request: Request) -> Response:
        async with self.host.using(self.host.named(None, False)) as served:
            n_ctx, n_slots = served.model.target.n_ctx, self.queue.n_slots
            return JSONResponse(llama_routes.props(served.completions, n_ctx, n_slots))

    async def slots(self, request: Request) -> Response:
        async with self.host.using(self.host.named(None, False)) as served:
            n_ctx, n_busy = served.model.target.n_ctx, self.queue.n_processing
            slots = range(self.queue.n_slots)
            told = [{"id": one, "n_ctx": n_ctx, "is_processing": one < n_busy} for one in slots]
            return JSONResponse(told)

    async def tags(self, request: Request) -> Response:
        return JSONResponse({"models": [*map(ollama_routes.tag, self.host.models)]})

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": extras.installed_version()})

    async def show(self, request: Request) -> Response:
        async with self.bodies.of(request) as body:
            fields = llama_routes.as_fields(decoded(body))
        name = fields.get("model") or fields.get("name")
        model = self.host.named(str(name) if name else None)
        served = self.host.served(model)
        template = served.completions.template if isinstance(served, ServedText) else ""
        info = served and served.model.target
        return JSONResponse(ollama_routes.shown(model, info, template))

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

    @asynccontextmanager
    async def _asked(self, request: Request, embeds: bool) -> AsyncIterator[tuple[bytearray, Any]]:
        """The body of a request, and the loaded model that it names."""
        async with self.bodies.of(request) as body:
            model, _ = await self.wanted(body, embeds)
            async with self.host.using(model) as served:
                yield body, served

    async def computed(self, compute: _Compute, request: Request) -> Response:
        """The answer that `compute` gives with the model that a request names, and its body."""
        async with self._asked(request, embeds=False) as (body, served), self.queue.preparing:

            def computed() -> dict[str, Any]:
                with leaving_out(request.state.ignored):
                    return compute(served, decoded(body))

            return JSONResponse(await in_thread(computed))

    async def embeddings(self, request: Request) -> Response:
        with self.queue.place():
            async with self._asked(request, embeds=True) as (body, served), self.embedding:

                def compute() -> Iterator[str]:
                    with leaving_out(request.state.ignored):
                        asked = EmbeddingRequest.parse(decoded(body))
                    answer = Embeddings(served.model, served.name, asked, ANSWER_BYTES)
                    answer.compute()
                    heap.trim_heap()
                    return answer.pieces()

                pieces = await in_thread(compute, served.model.cancel)
                return StreamingResponse(pieces, media_type="application/json")

    async def budget(self, request: Request) -> Response:
        most_bytes = self.budget_limit.most_bytes
        return JSONResponse(asdict(self._loaded.budget) | {"most_bytes": most_bytes})

    async def set_budget(self, request: Request) -> Response:
        self.guard.check_admin(request.headers)
        async with self.bodies.of(request) as body:
            size = self.budget_limit.budget_of(decoded(body))
        session = self._loaded

        def change() -> None:
            session.set_memory_budget(size)
            self.on_budget(size)

        with self.host.staying():  # the next model is loaded with the new budget
            async with self.changing_budget:
                await in_thread(change)
        return await self.budget(request)

    @property
    def _loaded(self) -> Session:
        """The loaded model that writes texts. Raises Refusal if there is none, and if several share
        the budget."""
        if self.host.together:
            message = "several models share the budget, which stays: start the server with another"
            raise Refusal(409, message, code="budget_shared")
        if not isinstance(served := self.host.current, ServedText):
            raise overloaded("no model that writes texts is loaded", "not_loaded")
        return served.model


_Compute = Callable[[ServedText, Any], dict[str, Any]]
"""An answer without a text, given the model that a request names and its body."""
_Handler = Callable[[Service, Request], Awaitable[Response]]


async def _refused(request: Request, error: Exception) -> Response:
    return refused(error, request.scope)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table of routes."""

    method: str
    path: str
    answer: _Handler
    summary: str = ""
    """For OpenAPI's document; empty where another server's documents describe the route."""
    body: type[Any] | None = None
    """Model that validates its requests."""
    needs_key: bool = True


def _computed(compute: _Compute) -> _Handler:
    return lambda service, request: service.computed(compute, request)


def _tokens(compute: Callable[[Any, Any], dict[str, Any]]) -> _Handler:
    return _computed(lambda served, body: compute(served.model.tokenizer, body))


def _count(parse: Callable[[Any], ChatRequest]) -> _Handler:
    return _computed(
        lambda served, body: {"input_tokens": served.completions.count_tokens(parse(body))}
    )


def _rendered(served: ServedText, body: object) -> dict[str, Any]:
    return {"prompt": served.completions.rendered(ChatRequest.parse(body))}


def _texts(door: Door) -> TableRow:
    def answer(service: Service, request: Request) -> Awaitable[Response]:
        return complete(service, door, request)

    return TableRow("POST", door.path, answer, door.summary, door.body)


TABLE = (
    *map(_texts, DOORS),
    TableRow("POST", "/embeddings", Service.embeddings, "Vectors of texts", EmbeddingRequest),
    TableRow(
        "POST",
        "/messages/count_tokens",
        _count(lambda body: CountRequest.parse(body).chat_request()),
        "Count a conversation's tokens",
        CountRequest,
    ),
    TableRow("POST", "/chat/completions/input_tokens", _count(ChatRequest.parse)),
    TableRow("POST", "/apply-template", _computed(_rendered)),
    TableRow("POST", "/tokenize", _tokens(tokenize), "Tokens of a text", TokenizeRequest),
    TableRow("POST", "/detokenize", _tokens(detokenize), "Text of tokens", DetokenizeRequest),
    TableRow("POST", "/rerank", Service.rerank),
    TableRow("GET", "/props", Service.props),
    TableRow("GET", "/slots", Service.slots),
    TableRow("GET", "/api/tags", Service.tags),
    TableRow("GET", "/api/version", Service.version),
    TableRow("POST", "/api/show", Service.show),
    TableRow("GET", "/models", Service.models, "The models"),
    TableRow("GET", "/models/{name:path}", Service.model, "A model"),
    TableRow("GET", "/budget", Service.budget, "The memory budget and what is in memory"),
    TableRow("POST", "/budget", Service.set_budget, "Change the memory budget", BudgetRequest),
    TableRow("GET", "/metrics", Service.metrics, "Metrics for Prometheus"),
    TableRow("GET", "/health", Service.health, "The state of the server", needs_key=False),
    TableRow("GET", "/openapi.json", Service.openapi, needs_key=False),
    TableRow("GET", "/", lambda _, request: page(request), needs_key=False),
    TableRow("GET", "/page/{name}", lambda _, request: page(request), needs_key=False),
)
"""The routes, all of which answer with `/v1` and without."""


@cache
def document() -> dict[str, Any]:
    """The routes in OpenAPI's format, with the fields of requests."""
    told = [entry for entry in TABLE if entry.summary]
    references, definitions = models_json_schema(
        [(entry.body, "validation") for entry in told if entry.body],
        ref_template="#/components/schemas/{model}",
    )
    schemas = definitions["$defs"]
    for lenient in (ChatRequest, CompletionRequest):
        schemas[lenient.__name__]["properties"] |= {name: {} for name in llama_fields.KNOWN}
    paths: dict[str, dict[str, Any]] = {}
    for entry in told:
        responses = {
            "200": {"description": "an answer"},
            "default": {"description": "a refusal, with its reason in `error.message`"},
        }
        operation: dict[str, Any] = {"summary": entry.summary, "responses": responses}
        if entry.body is not None:
            content = {"application/json": {"schema": references[entry.body, "validation"]}}
            operation["requestBody"] = {"required": True, "content": content}
        if "{name" in entry.path:
            name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [name]
        path = f"/v1{entry.path.replace(':path', '')}"
        paths.setdefault(path, {})[entry.method.lower()] = operation
    keys = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": extras.installed_version()},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": keys},
        "security": [{}, {"bearer": []}, {"key": []}],
    }
