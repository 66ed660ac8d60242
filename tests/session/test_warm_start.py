"""Facts that a mixture learnt of its experts are there in the next run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgespec.session.warm_start import warm_start
from fake_model import FakeModel, random_language

SHARES = [b"\x00\xff", b"\x01\x02"]


class RememberedMixture(FakeModel):
    """A mixture that pages its experts."""

    expected: Sequence[bytes] | None = None

    def expert_shares(self) -> Sequence[bytes]:
        return SHARES

    def expect_experts(self, shares: Sequence[bytes]) -> None:
        self.expected = shares


@pytest.fixture
def mixture() -> RememberedMixture:
    return RememberedMixture(random_language(5, 16), 16)


def test_shares_come_back(mixture: RememberedMixture, own_cache_folder: Path) -> None:
    warm_start(mixture, lambda: None)()
    warm_start(mixture, lambda: None)
    assert mixture.expected == SHARES


@pytest.mark.parametrize("content", [[], 7, {"shares": 7}, {"shares": [7]}, {"shares": ["0"]}])
def test_a_file_that_holds_something_else_is_as_good_as_none(
    mixture: RememberedMixture, own_cache_folder: Path, content: object
) -> None:
    warm_start(mixture, lambda: None)()
    (path,) = (own_cache_folder / "experts").iterdir()
    path.write_text(json.dumps(content))
    warm_start(mixture, lambda: None)
    assert mixture.expected == []


def test_a_model_without_experts_is_closed_and_no_more(own_cache_folder: Path) -> None:
    closed: list[bool] = []
    warm_start(FakeModel(random_language(5, 16), 16), lambda: closed.append(True))()
    assert closed and not (own_cache_folder / "experts").exists()
