"""Clients with different keys: each finds its own texts, in memory and on disk, and no others'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from edgespec.server.guarding import Guard
from edgespec.session.session import Session
from server_running import pair, serving

PROMPT = "def f(x):\n    return x + 1\n\n\n" * 30


def cached(address: str, key: str, prompt: str = PROMPT) -> int:
    """Tokens of a prompt that were not computed again."""
    answer = httpx.post(
        f"{address}/v1/completions",
        json={"prompt": prompt, "max_tokens": 4},
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prefixes")


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    with pair(prompt_cache=folder, n_parallel=2, ctx_size=512) as loaded:
        yield loaded


@pytest.mark.slow
def test_each_key_has_prefixes_of_its_own(session: Session) -> None:
    with serving(session, Guard("127.0.0.1", api_key="anna\nbert\n")) as address:
        assert cached(address, "anna") == 0
        assert cached(address, "anna") >= 64
        assert cached(address, "bert") == 0
        assert cached(address, "bert") >= 64
        wrong = httpx.post(f"{address}/v1/completions", headers={"Authorization": "Bearer carl"})
        assert wrong.status_code == 401


@pytest.mark.slow
def test_a_restart_keeps_them_apart(session: Session) -> None:
    with serving(session, Guard("127.0.0.1", api_key="anna\ncarl")) as address:
        assert cached(address, "carl") == 0
        assert cached(address, "anna") >= 64
