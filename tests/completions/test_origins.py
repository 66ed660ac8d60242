"""A stream tells of each token who had guessed it, if it is asked to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import edgespec
from edgespec.engine.settings import EngineSettings
from edgespec.models.embedded import embedded_pair
from edgespec.session.session import Session
from edgespec.settings.config import LoadSettings
from server_running import TEMPLATE


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session that always guesses."""
    files = embedded_pair()
    settings = LoadSettings(model=files.target, draft=files.draft)
    rules = EngineSettings(step_aside=False, fallback="full", remember=False)
    with edgespec.load(settings, rules) as loaded:
        loaded.use_chat_template(TEMPLATE)
        yield loaded


ASKED = {"max_tokens": 24, "temperature": 0.0}
MESSAGES = [{"role": "user", "content": "add two numbers"}]


def test_every_token_of_a_chat_has_an_origin(session: Session) -> None:
    chunks = session.create_chat_completion(MESSAGES, stream=True, return_origins=True, **ASKED)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    origins = [origin for choice in choices for origin in choice.get("origins", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert len(origins) == 24
    assert "".join(origin["text"] for origin in origins) == text
    assert {origin["by"] for origin in origins} <= {"target", "draft", "lookup", "recycled"}
    assert origins[0]["by"] == "target"


def test_guesses_of_a_completion_are_told(session: Session) -> None:
    asked = {"stream": True, "return_origins": True, **ASKED}
    chunks = list(session.create_completion("def f(x):\n    return x\n" * 4, **asked))
    origins = [one for chunk in chunks for one in chunk["choices"][0]["origins"]]
    assert len(origins) == 24
    assert {origin["by"] for origin in origins} - {"target"}


def test_nobody_is_told_who_did_not_ask(session: Session) -> None:
    chunks = list(session.create_chat_completion(MESSAGES, stream=True, **ASKED))
    assert not [choice for chunk in chunks for choice in chunk["choices"] if "origins" in choice]
