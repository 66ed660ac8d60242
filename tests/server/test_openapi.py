"""The OpenAPI document: every route that answers, and references that lead to schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from edgespec.server.application import document
from edgespec.server.guarding import Guard
from edgespec.session.session import Session
from server_running import serving


@pytest.fixture(scope="module")
def address(session: Session) -> Iterator[str]:
    with serving(session, Guard("127.0.0.1", "secret")) as running:
        yield running


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
