"""A server that answers several requests at once, over models that are known by heart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from test_server_clients import until_idle

from edgespec.errors import TargetLost
from edgespec.session.session import Session
from engine_cases import COUNTING, N_VOCAB
from fake_model import FakeModel
from server_running import serving
from session_cases import holds_passes, open_session

N_SLOTS = 3
CLIENT = httpx.Client(timeout=60, headers={"Connection": "close"}, trust_env=False)
DAMAGED = 7
"""The first token of prompts after which the model has no logits."""


def language(context: tuple[int, ...]) -> np.ndarray:
    damaged = np.full(N_VOCAB, np.nan, np.float32)
    return damaged if context[0] == DAMAGED else COUNTING(context)


@pytest.fixture
def target() -> FakeModel:
    return FakeModel(language, N_VOCAB, n_texts=N_SLOTS)


@pytest.fixture
def session(target: FakeModel) -> Iterator[Session]:
    with open_session(target) as session:
        yield session


def ask(address: str, first: int = 1, n_tokens: int = 4) -> httpx.Response:
    asked = {"prompt": [first, 2, 3], "max_tokens": n_tokens, "temperature": 0}
    return CLIENT.post(f"{address}/v1/completions", json=asked)


def health(address: str) -> dict[str, Any]:
    found: dict[str, Any] = CLIENT.get(f"{address}/health").json()
    return found


def until(address: str, n_in_progress: int) -> dict[str, Any]:
    while (found := health(address))["requests_in_progress"] != n_in_progress:
        pass
    return found


def test_slots_are_taken_while_there_are_requests(target: FakeModel, session: Session) -> None:
    begun, may_go_on = holds_passes(target)
    with serving(session) as address, ThreadPoolExecutor(5) as pool:
        assert health(address)["slots_idle"] == N_SLOTS
        answers = [pool.submit(ask, address) for _ in range(5)]
        found = until(address, 5)
        assert begun.wait(60)
        while found["slots_processing"] != N_SLOTS:
            found = health(address)
        assert found["slots_idle"] == 0
        may_go_on.set()
        assert {answer.result().status_code for answer in answers} == {200}
        until_idle(address)
        assert health(address)["slots_idle"] == N_SLOTS


def test_answers_are_those_that_are_given_alone(session: Session) -> None:
    with serving(session) as address, ThreadPoolExecutor(20) as pool:
        alone = {n: ask(address, n % 6, 1 + n % 9).json()["choices"] for n in range(30)}
        asked = {n: pool.submit(ask, address, n % 6, 1 + n % 9) for n in alone}
        assert {n: answer.result().json()["choices"] for n, answer in asked.items()} == alone


def test_a_server_whose_target_is_lost_is_not_healthy(
    target: FakeModel, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container would never be started again: it went on saying "ok"."""

    def lose(*_: object) -> None:
        raise TargetLost("the server was lost")

    with serving(session) as address:
        assert CLIENT.get(f"{address}/health").status_code == 200
        monkeypatch.setattr(target, "evaluate", lose)
        answer = ask(address)
        found = CLIENT.get(f"{address}/health")
        for one in (answer, found):
            assert (one.status_code, one.json()["error"]["code"]) == (503, "target_lost")


def test_prompts_of_one_request_share_passes_where_slots_are_free(
    target: FakeModel, session: Session
) -> None:
    with serving(session) as address:
        alone = [ask(address, first, 20).json()["choices"][0]["text"] for first in (1, 2, 3)]
        n_one_by_one = target.n_passes
        prompts = [[first, 2, 3] for first in (1, 2, 3)]
        asked = {"prompt": prompts, "max_tokens": 20, "temperature": 0}
        # a pass takes longer than a thread's start, or one text ends before the next begins
        target.hook = lambda _: time.sleep(0.02)
        answer = CLIENT.post(f"{address}/v1/completions", json=asked).json()
    assert [choice["text"] for choice in answer["choices"]] == alone
    assert target.n_passes - n_one_by_one < 0.6 * n_one_by_one
