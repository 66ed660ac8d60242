"""`/v1/budget`: the memory budget of a running server."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from edgespec.completions.protocols.model_names import HostedModel
from edgespec.errors import ModelError
from edgespec.memory.budget import MemoryPlan
from edgespec.server.guarding import Guard
from edgespec.server.hosting import LoadedModel
from edgespec.session.session import Session
from server_running import pair, server_over

MIB = 1 << 20


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with pair(memory_budget="1GiB", adjustable_budget=True) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def client(session: Session) -> TestClient:
    guard = Guard("127.0.0.1", api_key="secret", admin_key="admin")
    app = server_over(session, guard)._http.config.app
    return TestClient(app, base_url="http://127.0.0.1", headers={"X-Api-Key": "admin"})


def test_the_budget_and_what_is_in_memory(client: TestClient, session: Session) -> None:
    found = client.get("/v1/budget").json()
    assert found["budget_bytes"] == session.plan.budget_bytes
    assert found["smallest_bytes"] < found["planned_bytes"] <= found["budget_bytes"]
    assert found["pinned_bytes"] > 0
    assert found["follows"] is False


@pytest.mark.parametrize("size", ["700MiB", 700 * MIB])
def test_another_budget(client: TestClient, size: object) -> None:
    answer = client.post("/v1/budget", json={"memory_budget": size})
    assert (answer.status_code, answer.json()["budget_bytes"]) == (200, 700 * MIB)
    assert client.get("/budget").json()["budget_bytes"] == 700 * MIB
    assert f"\nedgespec_memory_budget_bytes {700 * MIB}\n" in client.get("/metrics").text


def test_a_budget_below_the_smallest_is_refused_with_it(client: TestClient) -> None:
    before = client.get("/v1/budget").json()
    answer = client.post("/v1/budget", json={"memory_budget": "2MiB"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "budget_too_small")
    assert error["smallest_bytes"] == before["smallest_bytes"]
    assert client.get("/v1/budget").json()["budget_bytes"] == before["budget_bytes"]


NO_BUDGETS = [
    *([], {}, {"budget": 1}, {"memory_budget": 1, "more": 2}),
    *({"memory_budget": value} for value in (True, None, "much", "auto:1-9GiB", 0)),
]


@pytest.mark.parametrize("body", NO_BUDGETS)
def test_what_is_no_budget_is_refused(client: TestClient, body: object) -> None:
    answer = client.post("/v1/budget", json=body)
    assert answer.status_code == 400


@pytest.mark.parametrize("size", ["500GiB", "1025MiB", "100%"])
def test_no_client_goes_above_the_budget_of_the_start(client: TestClient, size: str) -> None:
    answer = client.post("/v1/budget", json={"memory_budget": size})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "budget_too_large")
    assert client.get("/v1/budget").json()["most_bytes"] == 1024 * MIB


def test_the_budget_is_changed_with_an_admin_key(client: TestClient) -> None:
    ask = {"memory_budget": "700MiB"}
    status = [
        client.post("/v1/budget", json=ask, headers={"X-Api-Key": key}).status_code
        for key in ("wrong", "secret", "admin")
    ]
    assert status == [401, 403, 200]
    assert client.get("/v1/budget", headers={"X-Api-Key": "secret"}).status_code == 200


def test_the_next_model_is_loaded_with_the_budget_that_was_given_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was loaded with the one before that if it was asked for while the memory was given up."""
    told: list[int] = []
    known: list[list[int]] = []
    is_changed, is_loading = threading.Event(), threading.Event()

    def load(*_: Any) -> LoadedModel:
        known.append([*told])
        is_loading.set()
        raise ModelError("nobody asks it for more")

    with pair(memory_budget="1GiB", adjustable_budget=True) as session:
        change = session.set_memory_budget

        def slow(size: int | str) -> MemoryPlan:
            plan = change(size)
            is_changed.set()
            is_loading.wait(1)
            return plan

        monkeypatch.setattr(session, "set_memory_budget", slow)
        models = [HostedModel("one"), HostedModel("two")]
        server = server_over(session, models=models, load=load, on_budget=told.append)
        transport = httpx.ASGITransport(server._http.config.app)

        async def steps() -> None:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as of:
                post = of.post("/v1/budget", json={"memory_budget": 700 * MIB})
                given = asyncio.create_task(post)
                await asyncio.to_thread(is_changed.wait)
                asked = {"model": "two", "prompt": "a"}
                assert (await of.post("/v1/completions", json=asked)).status_code == 500
                answer = await given
                assert (answer.status_code, answer.json()["budget_bytes"]) == (200, 700 * MIB)

        asyncio.run(steps())
    assert known == [[700 * MIB]]
