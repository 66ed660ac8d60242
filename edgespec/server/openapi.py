"""The description of the routes in OpenAPI's format, from the models that validate requests.

Answers in the forms of other servers are described where those are.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from edgespec import extras
from edgespec.completions import llama_fields
from edgespec.completions.embeddings import EmbeddingRequest
from edgespec.completions.protocols.message_requests import CountRequest, MessagesRequest
from edgespec.completions.protocols.response_requests import ResponsesRequest
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.tokenizing import DetokenizeRequest, TokenizeRequest
from edgespec.server.budget_request import BudgetRequest
from edgespec.server.serving import DOORS
from edgespec.session.session_budget import BudgetReport


class Health(TypedDict):
    """The state of the server."""

    status: Literal["ok"]
    requests_in_progress: int
    slots_idle: int
    slots_processing: int


class LoadingState(TypedDict):
    """The state of a model."""

    value: Literal["loaded", "loading", "unloaded"]


class ModelEntry(TypedDict):
    """A model of the server."""

    id: str
    object: Literal["model"]
    kind: Literal["text", "embedding"]
    size_bytes: int
    smallest_budget_bytes: int
    status: LoadingState


class ModelPage(TypedDict):
    """The models of the server."""

    object: Literal["list"]
    data: list[ModelEntry]


_ROUTES: tuple[tuple[str, str, str, Any, Any], ...] = (
    ("post", "/v1/chat/completions", "Answer a conversation", ChatRequest, dict),
    ("post", "/v1/completions", "Continue texts", CompletionRequest, dict),
    ("post", "/v1/embeddings", "Vectors of texts", EmbeddingRequest, dict),
    ("post", "/v1/responses", "Answer in OpenAI's Responses", ResponsesRequest, dict),
    ("post", "/v1/messages", "Answer in Anthropic's messages", MessagesRequest, dict),
    ("post", "/v1/messages/count_tokens", "Count a conversation's tokens", CountRequest, dict),
    ("post", "/v1/tokenize", "Tokens of a text", TokenizeRequest, dict),
    ("post", "/v1/detokenize", "Text of tokens", DetokenizeRequest, dict),
    ("post", "/v1/budget", "Change the memory budget", BudgetRequest, BudgetReport),
    ("get", "/v1/budget", "The memory budget and what is in memory", None, BudgetReport),
    ("get", "/v1/models", "The models", None, ModelPage),
    ("get", "/v1/models/{name}", "A model", None, ModelEntry),
    ("get", "/v1/health", "The state of the server", None, Health),
    ("get", "/metrics", "Metrics for Prometheus", None, str),
)
"""Method, path, summary, body and answer of each route."""
_TAKES_MORE = (ChatRequest, CompletionRequest)
"""Requests that also take fields of llama.cpp and vLLM."""
_STREAMS = {f"/v1{door.path}" for door in DOORS}


async def openapi(request: Request) -> Response:
    """The document, as JSON."""
    return JSONResponse(document())


@cache
def document() -> dict[str, Any]:
    """The document. Names of schemas are those of the models."""
    models = {model for *_, body, answer in _ROUTES for model in (body, answer) if model}
    references, definitions = TypeAdapter.json_schemas(
        [(model, "validation", TypeAdapter(model)) for model in models],
        ref_template="#/components/schemas/{model}",
    )
    schemas = definitions["$defs"]
    for lenient in _TAKES_MORE:
        schemas[lenient.__name__]["properties"] |= {name: {} for name in llama_fields.KNOWN}
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, body, answer in _ROUTES:
        kind = "text/plain" if answer is str else "application/json"
        told = {kind: {"schema": references[answer, "validation"]}}
        if path in _STREAMS:
            told["text/event-stream"] = {"schema": {"type": "string"}}
        responses = {
            "200": {"description": "an answer", "content": told},
            "default": {"description": "a refusal, with its reason in `error.message`"},
        }
        operation: dict[str, Any] = {"summary": summary, "responses": responses}
        if body is not None:
            content = {"application/json": {"schema": references[body, "validation"]}}
            operation["requestBody"] = {"required": True, "content": content}
        if "{name}" in path:
            name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [name]
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": extras.installed_version()},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }
