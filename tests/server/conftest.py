"""The session that tests of the server share; a module that needs another one has its own."""

from collections.abc import Iterator

import pytest

from edgespec.session.session import Session
from server_running import pair


@pytest.fixture(scope="package")
def session() -> Iterator[Session]:
    with pair() as loaded:
        yield loaded
