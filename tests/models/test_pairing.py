"""Fit of a draft to a target, on models of known probabilities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgespec.cli.commands.models.checking import MeasuredPair, SampledFit
from edgespec.errors import PairError
from edgespec.memory.budget import MemoryPlan
from edgespec.models.pair_fit import PairFit, SourcesFit, measure
from edgespec.rules.sampling import SamplingParams
from edgespec.values import SourceStats
from engine_cases import COUNTING, N_VOCAB, PROMPT, WARM, assert_nothing_provisional
from fake_model import FakeModel, blend, random_language

PROMPTS = (PROMPT, [5, 6], [0])
OURS, OTHER = random_language(1, N_VOCAB), random_language(2, N_VOCAB)
NEAR = blend(OURS, OTHER, 0.3)
N_TOKENS = 24
PENALISED = SamplingParams(temperature=1.2, seed=7, top_k=8, repeat_penalty=1.3)


def silent(what: str, share: float) -> None:
    pass


def fit(target: FakeModel, draft: FakeModel, max_tokens: int = N_TOKENS) -> PairFit:
    return measure(target, draft, PROMPTS, max_tokens, silent)


def found_by(*sources: SourceStats) -> PairFit:
    return PairFit(1, 1, 1, 1, SourcesFit(16, 100, sources))


def test_a_draft_that_is_the_target_agrees_always() -> None:
    same = measure(FakeModel(COUNTING, N_VOCAB), FakeModel(COUNTING, N_VOCAB), [PROMPT], 24, silent)
    assert (same.compared, same.agreement) == (24, 1.0)


def test_agreement_is_counted_token_by_token() -> None:
    found = fit(FakeModel(OURS, N_VOCAB), FakeModel(NEAR, N_VOCAB))
    agreed = 0
    for prompt in PROMPTS:
        text = tuple(prompt)
        for _ in range(N_TOKENS):
            token = int(np.argmax(OURS(text)))
            agreed += token == int(np.argmax(NEAR(text)))
            text = (*text, token)
    assert (found.compared, found.agreed) == (found.n_tokens, agreed)
    assert 0 < found.agreement < 1


def test_a_draft_that_is_the_target_draws_every_sampled_token() -> None:
    same = measure(
        FakeModel(OURS, N_VOCAB), FakeModel(OURS, N_VOCAB), [PROMPT], N_TOKENS, silent, PENALISED
    )
    assert (same.compared, same.agreement) == (N_TOKENS, 1.0)


@pytest.mark.slow
def test_the_target_writes_each_text_once() -> None:
    target = FakeModel(OURS, N_VOCAB)
    found = fit(target, FakeModel(NEAR, N_VOCAB))
    assert len(target.evaluations) <= found.n_tokens
    assert sum(target.prefilled) <= sum(len(prompt) - 1 for prompt in PROMPTS)


@pytest.mark.slow
def test_nothing_provisional_is_left() -> None:
    target, draft = FakeModel(OURS, N_VOCAB), FakeModel(NEAR, N_VOCAB)
    fit(target, draft)
    assert_nothing_provisional(target, draft)


def test_a_text_that_ends_early_is_compared_to_its_end() -> None:
    target = FakeModel(COUNTING, N_VOCAB, eog_tokens=[7])
    found = measure(target, FakeModel(COUNTING, N_VOCAB, eog_tokens=[7]), [PROMPT], 24, silent)
    assert (found.n_tokens, found.agreed) == (8, 8)


@pytest.mark.parametrize("n_ctx", [2, 10])
def test_what_the_draft_cannot_read_is_not_compared(n_ctx: int) -> None:
    target, draft = FakeModel(COUNTING, N_VOCAB), FakeModel(COUNTING, N_VOCAB, n_ctx=n_ctx)
    found = measure(target, draft, [PROMPT], 24, silent)
    assert found.compared == found.agreed == max(0, n_ctx - len(PROMPT) + 1)
    assert any("could not follow" in note for note in found.notes)


def test_tokens_that_the_draft_does_not_have_end_the_comparison() -> None:
    draft = FakeModel(lambda context: COUNTING(context)[:6], 6)
    found = measure(FakeModel(COUNTING, N_VOCAB), draft, [PROMPT], 24, silent)
    assert found.compared == 7  # 0 to 5, and what follows the 5


@pytest.mark.parametrize("role", ["target", "draft"])
def test_recurrent_models_cannot_be_paired(role: str) -> None:
    models = {
        name: FakeModel(OURS, N_VOCAB, tree_capable=name != role) for name in ("target", "draft")
    }
    with pytest.raises(PairError, match=f"the {role} .* recurrent"):
        fit(**models)


@pytest.mark.slow
def test_progress_goes_from_nothing_towards_everything() -> None:
    shares: dict[str, list[float]] = {}
    measure(
        FakeModel(OURS, N_VOCAB),
        FakeModel(NEAR, N_VOCAB),
        PROMPTS,
        N_TOKENS,
        lambda what, share: shares.setdefault(what, []).append(share),
    )
    assert len(shares) == 2
    for seen in shares.values():
        assert seen[0] == 0
        assert 0.6 < seen[-1] <= 1
        assert seen == sorted(seen)


@pytest.mark.slow
def test_every_source_of_guesses_is_counted_while_the_target_writes() -> None:
    found = measure(
        FakeModel(OURS, N_VOCAB), FakeModel(NEAR, N_VOCAB), PROMPTS, N_TOKENS, silent
    ).together
    assert {by.source for by in found.sources} <= {"draft", "lookup", "recycled"}
    assert {"draft", "recycled"} <= {by.source for by in found.sources}
    assert found.rounds + sum(by.accepted for by in found.sources) == len(PROMPTS) * N_TOKENS
    assert found.tokens_per_pass == pytest.approx(len(PROMPTS) * N_TOKENS / found.rounds)


def test_the_report_says_who_guessed() -> None:
    found = found_by(SourceStats("draft", 1200, 300), SourceStats("recycled", 40, 20))
    plan = MemoryPlan(1 << 30, (), (), frozenset(), 0, False, 1 << 20)
    pair = MeasuredPair(Path("a"), found, plan, 1 << 20)
    lines = pair.report(Path("b")).lines()
    assert "All sources of guesses together, 16 guesses per pass: 4.20 tokens per pass" in lines
    assert "draft        1,200       300" in lines
    assert "recycled        40        20" in lines
    said = pair.report(Path("b")).as_dict()["sources"]
    assert said["tokens_per_pass"] == pytest.approx(4.2)
    assert said["sources"][1] == {"source": "recycled", "verified": 40, "accepted": 20}


def test_sampled_texts_stand_beside_greedy_ones() -> None:
    plan = MemoryPlan(1 << 30, (), (), frozenset(), 0, False, 1 << 20)
    greedy = MeasuredPair(Path("a"), found_by(SourceStats("draft", 400, 200)), plan, 1 << 20)
    warm = SampledFit(WARM, found_by(SourceStats("draft", 400, 150)))
    both = replace(greedy, sampled=warm)
    assert greedy.report(Path("b")).as_dict()["sampled"] is None
    said = both.report(Path("b")).as_dict()
    assert said["sources"]["tokens_per_pass"] == 3.0
    assert said["sampled"]["sources"]["tokens_per_pass"] == 2.5
    assert said["sampled"]["sampling"]["temperature"] == 0.8
    assert any(
        "sampled with temperature 0.8, seed 4" in line for line in both.report(Path("b")).lines()
    )
