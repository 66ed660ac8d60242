"""Fixtures that the tests of a module of the server share, unless it has its own: a session, a
browser, and the page in it."""

from collections.abc import Iterator

import pytest

from browser import Browser, page_alone
from edgespec.session.session import Session
from server_running import pair


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with pair() as loaded:
        yield loaded


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    running = Browser()
    yield running
    running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    """The page in a tab that keeps nothing of other tests."""
    with page_alone() as address:
        browser.resize(1280, 800)
        browser.open(address)
        browser.until("document.title === 'm'")
        yield browser
