"""The embedded mixture of experts: its routing, and its text when experts are paged and drafted."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from test_gguf_model import open_paged, open_resident

from edgespec.models import catalogue
from edgespec.rules.sampling import SamplingParams
from edgespec.values import GenerationResult
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from engine_cases import AskedEngine as Engine
from engine_cases import finish
from expert_routing import record

PROMPT = [313, 1624, 760, 644, 83, 2339, 298, 259, 1624, 83, 277, 1694, 259, 360, 2151, 308, 716]
"""def count_words(text): and two lines more."""


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture") / "big.gguf"
    enlarge(catalogue.find("mixture"), path, 32 << 20)
    return path


@pytest.fixture(scope="module")
def drafted(big: Path) -> Iterator[Engine]:
    """A pair with room for half of the weights."""
    target, draft = open_paged(big, share=0.5), open_resident(catalogue.find("draft"))
    with Engine(target, draft) as engine:
        yield engine
    draft.close()
    target.close()


def write(engine: Engine, sampling: SamplingParams) -> GenerationResult:
    return finish(engine.generate(PROMPT, sampling, max_tokens=24))


@pytest.mark.slow
def test_some_experts_are_there_and_others_are_read(drafted: Engine) -> None:
    experts = write(drafted, SamplingParams()).paging.experts
    assert (experts.experts, experts.used) == (16, 4)
    assert 0.1 < experts.hits / (experts.hits + experts.misses) < 1.0


@pytest.mark.slow
def test_every_expert_has_work() -> None:
    """The load-balancing loss did what it should, but in the first layer, which sees nothing but
    the token and sends all indentation one way: none starves, and none has all tokens."""
    draft = open_resident(catalogue.find("draft"))
    tokens = draft.vocabulary.encode(inspect.getsource(textwrap.TextWrapper))[:400]
    draft.close()
    passes = record(catalogue.find("mixture"), tokens, n_new=0)
    for layer in range(1, 6):
        chosen = np.concatenate([dict(one)[layer].ravel() for one in passes])
        share = np.bincount(chosen, minlength=16) / len(tokens)
        assert share.min() > 0.01
        assert share.max() < 0.75
