"""A draft made from the target computes with the weights that the target pins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError
from edgespec.memory.budget import COPIES, MemoryPlan
from edgespec.models.embedded import embedded_pair
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec.tools import enlarge
from edgespec_runtimes.enlarge.gguf.trim import write_trimmed
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.own_draft.trimmed import copy_sizes
from port_calls import logits_of_a_tree
from reference import quantise

PROMPT = "def read(path):\n    with open(path) as file:\n"
TARGET_BYTES = 18 << 20
RULES = EngineSettings(remember=False, step_aside=False, lookup=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target") / "target.gguf"
    enlarge(embedded_pair().target, path, TARGET_BYTES)
    return path


@pytest.fixture(scope="module")
def coarse(target: Path) -> Path:
    """A draft with coarse copies of the target's layers and a head for all of its tokens."""
    out = target.with_name("draft.gguf")
    quantised = target.with_name("coarse.gguf")
    quantise(target, quantised, "Q4_0")
    write_trimmed(quantised, out, range(4096))
    return out


@pytest.fixture(scope="module")
def budget_bytes(target: Path, coarse: Path) -> int:
    """A budget that pages the target beside the draft, and pins some of it."""
    settings = LoadSettings(model=target, draft=coarse, memory_budget="1GiB", ctx_size=256)
    return session.plan(settings).smallest_bytes


@pytest.fixture
def sharing(target: Path, coarse: Path, budget_bytes: int) -> LoadSettings:
    return LoadSettings(model=target, draft=coarse, memory_budget=budget_bytes, ctx_size=256)


@pytest.fixture
def copying(sharing: LoadSettings) -> LoadSettings:
    return sharing.model_copy(update={"adjustable_budget": True})


def bytes_of_copies(plan: MemoryPlan) -> int:
    return sum(row.nbytes for row in plan.rows if row.what == COPIES)


def logits_of(settings: LoadSettings) -> np.ndarray:
    """The draft's logits after the nodes of a small tree."""
    with session.open_models(settings) as models:
        return logits_of_a_tree(models.draft, models.target.vocabulary.encode(PROMPT))


@pytest.mark.slow
def test_its_plan_has_copies_of_what_is_streamed_only(
    sharing: LoadSettings, target: Path, coarse: Path
) -> None:
    plan = session.plan(sharing)
    copies = copy_sizes(read_header(coarse), read_header(target))
    assert plan.paged
    assert plan.shared
    assert 0 < bytes_of_copies(plan) < sum(copies.values())


@pytest.mark.slow
def test_it_computes_with_what_the_target_pins(
    sharing: LoadSettings, copying: LoadSettings, target: Path
) -> None:
    """Its logits lie between those of copies of all layers and those of the target."""
    of_target = logits_of(sharing.model_copy(update={"draft": target, "memory_budget": "1GiB"}))
    with_copies, shared = logits_of(copying), logits_of(sharing)
    assert 0 < np.abs(shared - of_target).mean() < 0.9 * np.abs(with_copies - of_target).mean()


@pytest.mark.slow
def test_a_changed_budget_leaves_it_what_it_shares(
    sharing: LoadSettings, budget_bytes: int
) -> None:
    with session.load(sharing, RULES) as loaded:
        text = loaded.generate(PROMPT, max_tokens=12).tokens
        with pytest.raises(BudgetError):
            loaded.set_memory_budget(loaded.budget.smallest_bytes - 1)
        for changed in (loaded.budget.smallest_bytes, "1GiB", budget_bytes):
            loaded.set_memory_budget(changed)
            assert loaded.generate(PROMPT, max_tokens=12).tokens == text
            assert loaded.plan.shared


def test_an_adjustable_budget_has_copies_of_all(copying: LoadSettings) -> None:
    plan = session.plan(copying)
    assert plan.paged
    assert not plan.shared
    assert not bytes_of_copies(plan)


def test_the_head_is_no_copy_of_the_targets_embeddings(target: Path, coarse: Path) -> None:
    draft, whole = read_header(coarse), read_header(target)
    head, embeddings = (header.tensors_by_name["token_embd.weight"] for header in (draft, whole))
    assert head.shape == embeddings.shape
    assert "token_embd.weight" not in copy_sizes(draft, whole)
