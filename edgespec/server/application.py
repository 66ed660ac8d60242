"""The server's routes, which answer HTTP requests with the models of a host, and its page.

Knows HTTP; `completions` interprets requests, `answering` runs them, `front` and `guarding` check
clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from edgespec import extras
from edgespec.completions.embeddings import EmbeddingRequest, Embeddings
from edgespec.completions.protocols.message_replies import MessagesReply
from edgespec.completions.protocols.message_requests import CountRequest
from edgespec.completions.protocols.model_names import HostedModel, model_named
from edgespec.completions.protocols.openai_replies import ChatReply, TextReply
from edgespec.completions.protocols.request_parts import leaving_out
from edgespec.completions.protocols.response_replies import ResponsesReply, StoredResponses
from edgespec.completions.refusals import Refusal, decoded, overloaded
from edgespec.completions.request_limits import ANSWER_BYTES, STORED_BYTES
from edgespec.completions.requests import ChatRequest
from edgespec.completions.tokenizing import detokenize, tokenize
from edgespec.memory import heap, process
from edgespec.server import other_servers
from edgespec.server.answering import DONE, Door, complete, line, while_connected
from edgespec.server.front import refused
from edgespec.server.guarding import BudgetLimit, Guard
from edgespec.server.hosting import LoadedModel, ModelHost
from edgespec.server.other_servers import as_fields, llama_dialect, ollama_dialect
from edgespec.server.queueing import Queue, ServerFigures
from edgespec.session.asynchronous import in_thread

_STATIC = files("edgespec.server").joinpath("static")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
"""Kinds of files of the page; others, such as licences, are not served."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
"""Content security policy; only the sanitiser may turn text into elements."""


@dataclass(slots=True)
class Service:
    """The answers of the routes, and their shared state."""

    host: ModelHost
    queue: Queue
    guard: Guard
    figures: ServerFigures
    budget_limit: BudgetLimit
    on_budget: Callable[[int | str], None]
    """Called with the budget that a client has given."""
    max_s: float | None = None
    """Most seconds of an answer from its turn on; None: no limit."""
    stored: StoredResponses = field(default_factory=lambda: StoredResponses(STORED_BYTES))
    created: float = field(default_factory=time.time)
    embedding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while vectors are computed, whose answer has memory of its own in the plan."""
    changing_budget: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held so that the budget told last is the session's."""

    def application(self) -> Starlette:
        """The ASGI application; all routes answer with `/v1` and without."""
        doors = {
            "/chat/completions": Door(ChatReply, DONE),
            "/completions": Door(TextReply, DONE),
            "/responses": Door(lambda served, body: ResponsesReply(served, self.stored, body)),
            "/messages": Door(MessagesReply),
            "/completion": Door(llama_dialect),
            "/infill": Door(partial(llama_dialect, fills=True)),
            "/api/chat": Door(partial(ollama_dialect, chats=True), told=line),
            "/api/generate": Door(partial(ollama_dialect, chats=False), told=line),
        }
        computed: dict[str, _Compute] = {
            "/messages/count_tokens": _count(lambda body: CountRequest.parse(body).chat_request()),
            "/chat/completions/input_tokens": _count(ChatRequest.parse),
            "/apply-template": lambda served, body: {
                "prompt": served.completions.rendered(ChatRequest.parse(body))
            },
            "/tokenize": lambda served, body: tokenize(served.model.tokenizer, body),
            "/detokenize": lambda served, body: detokenize(served.model.tokenizer, body),
        }
        guarded: dict[str, _Handler] = {
            **{f"POST {path}": partial(complete, self, door) for path, door in doors.items()},
            **{f"POST {path}": partial(self.computed, of) for path, of in computed.items()},
            "POST /embeddings": self.embeddings,
            "POST /rerank": self.rerank,
            "POST /budget": self.set_budget,
            "GET /budget": self.budget,
            "GET /models": self.models,
            "GET /models/{name:path}": self.model,
            "GET /metrics": self.metrics,
            "GET /props": self.props,
            "GET /slots": self.slots,
            "GET /api/tags": self.tags,
            "GET /api/version": self.version,
            "POST /api/show": self.show,
        }
        public = {"GET /health": self.health, "GET /": page, "GET /page/{name}": page}
        routes = {name: self._guarded(handler) for name, handler in guarded.items()} | public
        application = Starlette(
            routes=[
                Route(version + name.split()[1], handler, methods=name.split()[:1])
                for version in ("", "/v1")
                for name, handler in routes.items()
            ],
            exception_handlers={HTTPException: refused, Exception: refused},
        )
        application.router.redirect_slashes = False  # `Front` has removed the slash
        return application

    def _guarded(self, handler: _Handler) -> _Handler:
        async def guarded(request: Request) -> Response:
            request.state.client = self.guard.check_key(request.headers)
            return await handler(request)

        return guarded

    async def rerank(self, request: Request) -> Response:
        message = "this server does not rank texts: compare vectors of /v1/embeddings"
        raise Refusal(400, message, code="unsupported_route")

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
        sessions = [one.served.model for one in self.host.loaded]
        paging = [session.paging for session in sessions]
        values = {
            "uptime_seconds": time.time() - self.created,
            "peak_memory_bytes": process.peak_rss_bytes(),
            "requests_in_progress": self.queue.n_in_progress,
            "requests_processing": self.queue.n_processing,
            "slots": self.queue.n_slots,
            "passes_total": sum(one.passes for one in paging),
            "read_bytes_total": sum(one.bytes_read for one in paging),
            "stall_seconds_total": sum(one.stall_s for one in paging),
            "model_loads_total": self.host.n_loads,
        }
        if sessions:
            values["memory_budget_bytes"] = sessions[0].plan.budget_bytes
        return PlainTextResponse(self.figures.text(values), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        models = [*map(self._described, self.host.models)]
        ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"], "has_more": False}
        return JSONResponse({"object": "list", "data": models, **ends})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if len(self.host.models) == 1 and name != self.host.models[0].name:
            raise Refusal(404, f"this server has no model {name!r}", code="model_not_found")
        return JSONResponse(self._described(model_named(self.host.models, name)))

    def _described(self, model: HostedModel) -> dict[str, Any]:
        loaded: dict[str, Any] = {}
        if (served := model.served) is not None:
            loaded["context_length"] = served.model.target.n_ctx
            if served.completions is not None:
                loaded["sampling"] = served.completions.sampling
                loaded["chat"] = served.completions.chat_refusal is None
            else:
                loaded["dimensions"] = served.model.n_values
        return {
            "id": model.name,
            "object": "model",
            "type": "model",
            "display_name": model.name,
            "created": int(self.created),
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.created)),
            "owned_by": "edgespec",
            "kind": "embedding" if model.embeds else "text",
            "size_bytes": model.size_bytes,
            "smallest_budget_bytes": model.smallest_bytes,
            "status": self.host.state(model),
            **loaded,
        }

    async def props(self, request: Request) -> Response:
        async with self.host.using(model_named(self.host.models, None, False)) as served:
            n_ctx, completions = served.model.target.n_ctx, served.completions
            told = {
                "default_generation_settings": {"n_ctx": n_ctx, "params": completions.sampling},
                "total_slots": self.queue.n_slots,
                "model_path": completions.model,
                "model_alias": completions.model,
                "chat_template": completions.template,
                "modalities": {"vision": False, "audio": False},
                "build_info": f"edgespec {extras.installed_version()}",
            }
            return JSONResponse(told)

    async def slots(self, request: Request) -> Response:
        async with self.host.using(model_named(self.host.models, None, False)) as served:
            told, n_busy = {"n_ctx": served.model.target.n_ctx}, self.queue.n_processing
            slots = range(self.queue.n_slots)
            return JSONResponse([{"id": n, "is_processing": n < n_busy} | told for n in slots])

    async def tags(self, request: Request) -> Response:
        return JSONResponse({"models": [*map(other_servers.tag, self.host.models)]})

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": extras.installed_version()})

    async def show(self, request: Request) -> Response:
        async with self.queue.body_of(request) as body:
            fields = as_fields(decoded(body))
        name = fields.get("model") or fields.get("name")
        model = model_named(self.host.models, str(name) if name else None)
        served = model.served
        template = served.completions.template if served and served.completions else ""
        info = served and served.model.target
        return JSONResponse(other_servers.shown(model, info, template))

    async def wanted(self, body: bytearray, embeds: bool = False) -> tuple[HostedModel, bool]:
        """The model that a request names, and true if it asks for a stream. Raises Refusal.

        With one model, the body is not decoded for this.
        """
        if len(self.host.models) == 1:
            return model_named(self.host.models, None, embeds), False

        def read() -> tuple[str | None, bool]:
            content = decoded(body)
            fields = content if isinstance(content, Mapping) else {}
            name = fields.get("model")
            return name if isinstance(name, str) else None, fields.get("stream") is True

        async with self.queue.preparing:
            name, streams = await in_thread(read)
        return model_named(self.host.models, name, embeds), streams

    async def computed(self, compute: _Compute, request: Request) -> Response:
        """The answer that `compute` gives with the model that a request names, and its body."""
        async with self.queue.body_of(request) as body:
            model, _ = await self.wanted(body)

            def computed() -> dict[str, Any]:
                with leaving_out(request.state.ignored):
                    return compute(served, decoded(body))

            async with self.host.using(model) as served, self.queue.preparing:
                return JSONResponse(await in_thread(computed))

    async def embeddings(self, request: Request) -> Response:
        with self.queue.place():
            async with self.queue.body_of(request) as body:
                model, _ = await self.wanted(body, embeds=True)

                def compute() -> Iterator[str]:
                    with leaving_out(request.state.ignored):
                        asked = EmbeddingRequest.parse(decoded(body))
                    answer = Embeddings(served.model, model.name, asked, ANSWER_BYTES)
                    answer.compute()
                    heap.trim_heap()
                    return answer.pieces()

                async with self.host.using(model) as served, self.embedding:
                    work = in_thread(compute, served.model.cancel)
                    pieces = await while_connected(request, work)
                return StreamingResponse(pieces, media_type="application/json")

    async def budget(self, request: Request) -> Response:
        budget = self._budgeted.served.model.budget
        return JSONResponse(asdict(budget) | {"most_bytes": self.budget_limit.most_bytes})

    async def set_budget(self, request: Request) -> Response:
        self.guard.check_admin(request.headers)
        async with self.queue.body_of(request) as body:
            size = self.budget_limit.budget_of(decoded(body))
        model = self._budgeted
        with self.host.staying(model):  # the next model is loaded with the new budget
            async with self.changing_budget:
                await in_thread(partial(model.served.model.set_memory_budget, size))
                self.on_budget(size)
        return await self.budget(request)

    @property
    def _budgeted(self) -> HostedModel:
        """The loaded model that writes texts. Raises Refusal if there is none, and if several share
        the budget."""
        if any(one.stays and not one.embeds for one in self.host.models):
            message = "several models share the budget, which stays: start the server with another"
            raise Refusal(409, message, code="budget_shared")
        if not self.host.loaded or self.host.loaded[0].embeds:
            raise overloaded("no model that writes texts is loaded", "not_loaded")
        return self.host.loaded[0]


_Compute = Callable[[LoadedModel, Any], dict[str, Any]]
"""An answer without a text, given the model that a request names and its body."""
_Handler = Callable[[Request], Awaitable[Response]]


def _count(parse: Callable[[Any], ChatRequest]) -> _Compute:
    return lambda served, body: {"input_tokens": served.completions.count_tokens(parse(body))}


async def page(request: Request) -> Response:
    """Response with the page or one of its files. Raises Refusal for another path."""
    name = request.path_params.get("name", "index.html")
    kind = _TYPES.get(PurePosixPath(name).suffix)
    if kind is None or name not in {file.name for file in _STATIC.iterdir()}:
        raise Refusal(404, f"there is nothing at {request.scope['path']}", code="not_found")
    headers = {
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response((_STATIC / name).read_bytes(), headers=headers, media_type=kind)
