"""Files of the page: served whole, from here alone, and others' files as they were made."""

import hashlib
import re
from importlib.resources import files

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from edgespec.completions.refusals import Refusal
from edgespec.server.answering import line
from edgespec.server.application import page

STATIC = files("edgespec.server").joinpath("static")


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=[Route("/", page), Route("/page/{name}", page)]))


def test_everything_the_page_names_is_served_from_here(client):
    html = client.get("/").text
    named = re.findall(r'(?:src|href)="([^"#]+)"', html)
    assert len(named) == 6
    for path in named:
        response = client.get(f"/{path}")
        assert response.status_code == 200
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-type"].startswith("text/")


def test_nothing_runs_but_what_was_served(client):
    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "<script>" not in response.text
    assert "style=" not in response.text


def test_others_files_are_unchanged():
    told = STATIC.joinpath("THIRD_PARTY.md").read_text()
    rows = re.findall(r"^\| (\S+\.js) \|.*\| ([0-9a-f]{64}) \|$", told, re.MULTILINE)
    assert len(rows) == 4
    for name, digest in rows:
        assert hashlib.sha256(STATIC.joinpath(name).read_bytes()).hexdigest() == digest


OWN = ("api", "chat", "conversation", "engine", "library", "math", "origins", "view")


def test_the_page_is_small():
    assert sum(len(path.read_bytes()) for path in STATIC.iterdir()) <= 700_000
    n_lines = sum(STATIC.joinpath(f"{name}.js").read_text().count("\n") for name in OWN)
    assert n_lines <= 1300
    assert STATIC.joinpath("chat.css").read_text().count("\n") <= 250


def test_a_name_that_no_file_can_have_is_not_there(client):
    with pytest.raises(Refusal):
        client.get(f"/page/{'a' * 300}.js")


def test_half_a_surrogate_pair_is_an_escape_in_all_that_is_sent():
    assert line({"city": "\ud83d"}).encode() == b'{"city": "\\ud83d"}\n'
