"""The OpenAPI document: every route that answers, and schemas whose references lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from edgespec.server.guarding import Guard
from edgespec.server.openapi import document
from edgespec.session.session import Session
from server_running import serving


@pytest.fixture(scope="module")
def address(session: Session) -> Iterator[str]:
    with serving(session, Guard("127.0.0.1", "secret")) as running:
        yield running


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as found:
        yield found


def test_the_document_needs_no_key(address: str) -> None:
    served = httpx.get(f"{address}/openapi.json", timeout=60)
    assert served.status_code == 200 and served.json() == document()


@pytest.mark.slow
def test_every_route_of_the_document_answers(address: str) -> None:
    """Empty bodies are refused, which is an answer; 404 would be none."""
    right = {"Authorization": "Bearer secret"}
    for path, operations in document()["paths"].items():
        for method in operations:
            url = address + path.replace("{name}", "pair")
            answer = httpx.request(method, url, headers=right, timeout=60)
            assert answer.status_code in {200, 400, 403}, (method, path)  # 403: no admin key
            assert {"200", "default"} == {*operations[method]["responses"]}
            assert httpx.request(method, url, timeout=60).status_code in {401, 200}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_references_lead_to_schemas() -> None:
    schemas = document()["components"]["schemas"]
    found = set(references(document()))
    assert found
    for reference in found:
        match = re.fullmatch("#/components/schemas/(.+)", reference)
        assert match and match[1] in schemas


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """True if a value has the type, the fields and the constants of a schema of an answer."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return conforms(value, document()["components"]["schemas"][name])
    if "anyOf" in schema:
        return any(conforms(value, one) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float)}
    kinds |= {"boolean": bool, "null": type(None)}
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, kinds[name]) for name in types):
        return False
    if isinstance(value, list):
        return all(conforms(one, schema["items"]) for one in value)
    fields = schema.get("properties", {})
    return not isinstance(value, dict) or (
        value.keys() >= {*schema.get("required", ())}
        and all(conforms(one, fields[name]) for name, one in value.items() if name in fields)
    )


TURN = {"messages": [{"role": "user", "content": "one"}]}
ASKED = [
    ("/v1/chat/completions", {"max_tokens": 1, **TURN}),
    ("/v1/completions", {"prompt": "one", "max_tokens": 1}),
    ("/v1/responses", {"model": "pair", "input": "one", "max_output_tokens": 1}),
    ("/v1/messages", {"model": "pair", "max_tokens": 1, **TURN}),
    ("/v1/messages/count_tokens", {"model": "pair", **TURN}),
    ("/v1/tokenize", {"content": "one", "with_pieces": True}),
    ("/v1/detokenize", {"tokens": [5]}),
    ("/v1/budget", None),
    ("/v1/models", None),
    ("/v1/models/pair", None),
    ("/v1/health", None),
    ("/metrics", None),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_answers_are_as_the_document_says(
    client: httpx.Client, path: str, body: dict[str, Any] | None
) -> None:
    method = "GET" if body is None else "POST"
    right = {"Authorization": "Bearer secret"}
    answer = client.request(method, path, json=body, headers=right)
    told = document()["paths"][path.replace("pair", "{name}")][method.lower()]["responses"]
    content = told[str(answer.status_code)]["content"]
    kind = answer.headers["Content-Type"].partition(";")[0]
    assert answer.status_code == 200 and kind in content
    if kind == "application/json":
        assert conforms(answer.json(), content[kind]["schema"])
