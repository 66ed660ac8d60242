"""A port that answers while its model loads, and afterwards with it."""

from collections.abc import Iterator

import httpx
import pytest

from edgespec.completions.protocols.model_names import HostedModel
from edgespec.server.guarding import Guard
from edgespec.server.hosting import LoadedModel
from edgespec.server.lifetime import Server
from edgespec.settings.config import ServerSettings
from server_running import at_address


@pytest.fixture
def address() -> Iterator[str]:
    doing = lambda: ("reading <weights>", 0.43)  # noqa: E731
    with at_address(Server(Guard("127.0.0.1"), doing=doing)) as found:
        yield found


@pytest.mark.parametrize("path", ["/health", "/", "/v1/models", "/nothing/"])
def test_a_model_that_loads_says_when_to_come_again(address, path):
    answer = httpx.get(address + path)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["refresh"] == "1", "a browser asks again"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert error["code"] == "loading"
    assert error["message"].startswith("the model is loading: reading <weights>, 43%: try again in")


def test_a_client_that_sends_much_is_told_so(address):
    answer = httpx.post(f"{address}/v1/completions", content=bytes(20 << 20))
    assert answer.status_code == 503


def test_a_connection_outlives_loading(session):
    server = Server(Guard("127.0.0.1"))
    with at_address(server) as address, httpx.Client(base_url=address) as client:
        assert client.get("/v1/models").status_code == 503
        server.open([HostedModel("a")], LoadedModel(session), ServerSettings())
        assert client.get("/v1/models").status_code == 200


def test_a_failure_while_loading_frees_the_port():
    with pytest.raises(ZeroDivisionError), at_address(Server(Guard("127.0.0.1"))) as address:
        raise ZeroDivisionError
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
