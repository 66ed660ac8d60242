"""`/v1/budget`: the memory budget of a running server."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from edgespec.server.guarding import Guard
from edgespec.server.lifetime import Server
from edgespec.session.session import Session
from server_running import pair

MIB = 1 << 20


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with pair(memory_budget="1GiB", adjustable_budget=True) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def client(session: Session) -> TestClient:
    server = Server(session, Guard("127.0.0.1", api_key="secret"), "target", 4)
    app = server._server.config.app
    return TestClient(app, base_url="http://127.0.0.1", headers={"X-Api-Key": "secret"})


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


def test_a_budget_below_the_smallest_is_refused_with_it(client: TestClient) -> None:
    before = client.get("/v1/budget").json()
    answer = client.post("/v1/budget", json={"memory_budget": "2MiB"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "budget_too_small")
    assert error["smallest_bytes"] == before["smallest_bytes"]
    assert client.get("/v1/budget").json()["budget_bytes"] == before["budget_bytes"]


NO_BUDGETS = [
    *([], {}, {"budget": 1}, {"memory_budget": 1, "more": 2}),
    *({"memory_budget": value} for value in (True, None, "much", "auto", 0)),
]


@pytest.mark.parametrize("body", NO_BUDGETS)
def test_what_is_no_budget_is_refused(client: TestClient, body: object) -> None:
    answer = client.post("/v1/budget", json=body)
    assert answer.status_code == 400
    assert "size" in answer.text or "memory_budget" in answer.text


def test_a_key_is_asked_for(client: TestClient) -> None:
    wrong = {"X-Api-Key": "wrong"}
    assert client.get("/v1/budget", headers=wrong).status_code == 401
    assert client.post("/v1/budget", json={}, headers=wrong).status_code == 401
