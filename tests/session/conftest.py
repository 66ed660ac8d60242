from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec.session.session import Session
from engine_cases import counting
from fake_model import FakeModel
from session_cases import open_session


@pytest.fixture
def target() -> FakeModel:
    return counting()


@pytest.fixture
def session(target: FakeModel) -> Iterator[Session]:
    with open_session(target, counting()) as session:
        yield session


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool
