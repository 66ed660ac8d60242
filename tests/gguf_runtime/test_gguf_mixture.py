"""The embedded mixture of experts: what it routes, and its text when experts are paged and drafted."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec.config import LoadSettings
from edgespec.engine.sampling import SamplingParams
from edgespec.models import catalogue
from edgespec.session import Session
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from expert_routing import record

PROMPT = "def count_words(text):\n    counts = {}\n    for word in text.split():\n"
SAMPLINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.8, top_p=0.95, seed=7),
}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture") / "big.gguf"
    enlarge(catalogue.find("mixture"), path, 32 << 20)
    return path


@pytest.fixture(scope="module")
def alone(big: Path) -> Iterator[Session]:
    with edgespec.load(LoadSettings(model=big, ctx_size=128, memory_budget="1GiB")) as session:
        assert not session.plan.paged
        yield session


@pytest.fixture(scope="module")
def drafted(big: Path, alone: Session) -> Iterator[Session]:
    """With room for some of the experts."""
    settings = LoadSettings(model=big, draft=catalogue.find("draft"), ctx_size=128, memory_budget=1)
    with pytest.raises(edgespec.BudgetError) as refused:
        edgespec.load(settings)
    budget = (refused.value.smallest_bytes or 0) + (8 << 20)
    with edgespec.load(settings.model_copy(update={"memory_budget": budget})) as session:
        yield session


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_paged_experts_and_guesses_change_no_token(
    alone: Session, drafted: Session, sampling: str
) -> None:
    expected = alone.generate(PROMPT, SAMPLINGS[sampling], max_tokens=24)
    found = drafted.generate(PROMPT, SAMPLINGS[sampling], max_tokens=24)
    assert found.tokens == expected.tokens


def test_some_experts_are_there_and_others_are_read(drafted: Session) -> None:
    experts = drafted.generate(PROMPT, max_tokens=24).paging.experts
    assert experts is not None
    assert (experts.experts, experts.used) == (16, 4)
    assert 0.1 < experts.hit_rate < 1.0


def test_every_expert_has_work(alone: Session) -> None:
    """The load-balancing loss did what it should, but in the first layer, which sees nothing but
    the token and sends all indentation one way: none starves, and none has all tokens."""
    tokens = alone.encode(inspect.getsource(textwrap.TextWrapper))[:400]
    passes = record(catalogue.find("mixture"), tokens, n_new=0)
    for layer in range(1, 6):
        chosen = np.concatenate([dict(one)[layer].ravel() for one in passes])
        share = np.bincount(chosen, minlength=16) / len(tokens)
        assert share.min() > 0.03
        assert share.max() < 0.75
