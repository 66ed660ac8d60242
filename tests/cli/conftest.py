from __future__ import annotations

import pytest

from edgespec.session import session
from fake_session import FakeSession


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    fake = FakeSession()
    monkeypatch.setattr(session, "load", fake.load)
    return fake
