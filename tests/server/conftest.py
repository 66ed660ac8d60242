"""The session that the tests of a module of the server share, unless it has its own."""

from collections.abc import Iterator

import pytest

from edgespec.session.session import Session
from server_running import pair


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with pair() as loaded:
        yield loaded
