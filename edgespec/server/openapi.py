"""The description of the routes in OpenAPI's format, from the models that validate requests."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgespec import extras
from edgespec.completions import llama_fields
from edgespec.completions.embeddings import EmbeddingRequest
from edgespec.completions.protocols.message_requests import CountRequest, MessagesRequest
from edgespec.completions.protocols.response_requests import ResponsesRequest
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.tokenizing import DetokenizeRequest, TokenizeRequest
from edgespec.server.answer_schemas import SCHEMAS, TEXT, WHOLE, Schema, error_schema
from edgespec.server.budget_request import FIELD
from edgespec.server.serving import DOORS

_BODIES: dict[str, tuple[type[BaseModel], str]] = {
    "/v1/chat/completions": (ChatRequest, "Answer a conversation"),
    "/v1/completions": (CompletionRequest, "Continue texts"),
    "/v1/embeddings": (EmbeddingRequest, "Vectors of texts"),
    "/v1/responses": (ResponsesRequest, "Answer in OpenAI's Responses"),
    "/v1/messages": (MessagesRequest, "Answer in Anthropic's messages"),
    "/v1/messages/count_tokens": (CountRequest, "Count the tokens of a conversation"),
    "/v1/tokenize": (TokenizeRequest, "Tokens of a text"),
    "/v1/detokenize": (DetokenizeRequest, "Text of tokens"),
}
"""Model of the body and summary, by route."""
_OTHERS = {
    ("post", "/v1/budget"): "Change the memory budget",
    ("get", "/v1/budget"): "The memory budget and what is in memory",
    ("get", "/v1/models"): "The models",
    ("get", "/v1/models/{name}"): "A model",
    ("get", "/v1/health"): "The state of the server",
    ("get", "/metrics"): "Metrics for Prometheus",
}
_TAKES_MORE = (ChatRequest, CompletionRequest)
"""Requests that also take fields of llama.cpp and vLLM."""
_BUDGET_BODY: Schema = {
    "type": "object",
    "properties": {FIELD: {"anyOf": [{"type": "integer", "minimum": 1}, TEXT]}},
    "required": [FIELD],
    "additionalProperties": False,
}
_STREAMS = {f"/v1{door.path}" for door in DOORS}
_FAILURES = {
    "400": "the request is not valid",
    "401": "the API key is missing or wrong",
    "403": "the host or origin is not allowed",
    "404": "there is no such model or route",
    "408": "the body came too slowly",
    "413": "the body is too large",
    "415": "the body is compressed",
    "500": "the model failed",
    "503": "too many requests, or the server loads or ends: see Retry-After",
}


async def openapi(request: Request) -> Response:
    """The document, as JSON."""
    return JSONResponse(document())


@cache
def document() -> dict[str, Any]:
    """The document. Names of schemas are those of the models."""
    models = [(model, "validation") for model, _ in _BODIES.values()]
    references, definitions = models_json_schema(
        models,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
    )
    schemas = definitions["$defs"]
    for lenient in _TAKES_MORE:
        schemas[lenient.__name__]["properties"] |= llama_fields.SCHEMAS
    paths: dict[str, dict[str, Any]] = {}
    for path, (model, summary) in _BODIES.items():
        body = _body(references[model, "validation"])
        paths[path] = {"post": _operation(path, summary) | body}
    for (method, path), summary in _OTHERS.items():
        paths.setdefault(path, {})[method] = _operation(path, summary)
    paths["/v1/budget"]["post"] |= _body(_BUDGET_BODY)
    paths["/v1/models/{name}"]["get"]["parameters"] = [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": extras.installed_version()},
        "paths": paths,
        "components": {
            "schemas": schemas | SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(path: str, summary: str) -> dict[str, Any]:
    failures = {
        status: {"description": text} | _content("application/json", error_schema(path))
        for status, text in _FAILURES.items()
    }
    return {"summary": summary, "responses": {"200": _answer(path)} | failures}


def _answer(path: str) -> dict[str, Any]:
    """The description of an answer with status 200."""
    if path not in WHOLE:
        return {"description": "lines of text"} | _content("text/plain", TEXT)
    whole = _content("application/json", WHOLE[path])
    if path not in _STREAMS:
        return {"description": "an answer"} | whole
    whole["content"] |= _content("text/event-stream", TEXT)["content"]
    return {"description": "an answer; with `stream`, server-sent events"} | whole


def _content(kind: str, schema: Schema) -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


def _body(schema: Schema) -> dict[str, Any]:
    return {"requestBody": {"required": True} | _content("application/json", schema)}
