"""The loop on models of known probabilities: what it yields and where it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.engine import engine as engine_module
from edgespec.engine.settings import EngineSettings
from edgespec.errors import UsageError
from edgespec.ports import LanguageModel, PassPart
from edgespec.ports.text_request import TextRequest
from edgespec.rules.pacer import PACERS
from edgespec.rules.sampling import SamplingParams
from edgespec.rules.stop_rules import STOP_RULES
from engine_cases import (
    COUNTING,
    GREEDY,
    N_VOCAB,
    PROMPT,
    WARM,
    assert_nothing_provisional,
    counting,
    finish,
    follow,
    generate,
    waits_for_steps_of,
)
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, blend, random_language
from features_contract import FeaturesContract
from port_contract import PortContract
from sentences import hold_sentence, refuses
from slots_contract import SlotsContract
from state_contract import StateContract

# The fakes keep the contract that the runtimes keep


class TestFakeModelKeepsTheContract(PortContract):
    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        return lambda: FakeModel(random_language(0, 50, order=6), 50, n_ctx=64, gives_first=True)


class TestFakeModelWithThreeSlots(SlotsContract):
    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        return lambda: FakeModel(random_language(0, 50, order=6), 50, n_ctx=64, n_texts=3)


class TestFakeModelGivesFeatures(FeaturesContract):
    layers = (0, 0)

    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        return lambda: FakeModel(random_language(0, 50, order=6), 50, n_ctx=64, n_texts=2)


class TestFakeModelKeepsItsState(StateContract):
    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        return lambda: FakeModel(random_language(0, 50, order=6), 50, n_ctx=64)


# Nothing about the draft changes the text


@pytest.mark.slow
@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    pacer=st.sampled_from(sorted(PACERS)),
    fallback=st.sampled_from(["marginal", *STOP_RULES]),
    disagreement=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    overlap=st.booleans(),
    sampling=st.sampled_from(
        [
            GREEDY,
            WARM,
            SamplingParams(temperature=1.3, top_k=5, top_p=0.9, min_p=0.02, seed=9),
            SamplingParams(temperature=0.7, repeat_penalty=1.5, repeat_last_n=8, seed=2),
        ]
    ),
    draft_max=st.integers(1, 12),
    target_limits=st.tuples(st.integers(1, 10), st.integers(1, 5)),
    draft_limits=st.tuples(st.integers(1, 6), st.integers(1, 5)),
    n_ctx=st.integers(20, 60),
)
def test_a_draft_changes_no_token(
    seed: int,
    pacer: str,
    fallback: str,
    disagreement: float,
    overlap: bool,
    sampling: SamplingParams,
    draft_max: int,
    target_limits: tuple[int, int],
    draft_limits: tuple[int, int],
    n_ctx: int,
) -> None:
    language = random_language(seed, N_VOCAB)
    draft_language = blend(language, random_language(seed + 1, N_VOCAB), disagreement)

    def target() -> FakeModel:
        max_nodes, max_branches = target_limits
        return FakeModel(
            language,
            N_VOCAB,
            n_ctx=50,
            eog_tokens=[N_VOCAB - 1],
            stall_share=0.9,
            max_nodes=max_nodes,
            max_branches=max_branches,
        )

    max_nodes, max_branches = draft_limits
    draft = FakeModel(
        draft_language, N_VOCAB, n_ctx=n_ctx, max_nodes=max_nodes, max_branches=max_branches
    )
    alone = generate(target(), sampling=sampling, max_tokens=40)
    paired = generate(
        target(),
        draft,
        sampling=sampling,
        max_tokens=40,
        pacer=pacer,
        fallback=fallback,
        no_overlap=not overlap,
        draft_max=draft_max,
    )
    assert paired.tokens == alone.tokens
    assert paired.text == alone.text
    assert paired.finish_reason == alone.finish_reason
    assert_nothing_provisional(draft)


@pytest.mark.costly
@pytest.mark.parametrize("pacer", PACERS)
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_drafting_beside_the_pass_changes_no_token(
    pacer: str, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "LEAST_BESIDE", 0.0)
    language = random_language(7, N_VOCAB)
    draft = FakeModel(blend(language, random_language(8, N_VOCAB), 0.3), N_VOCAB)
    alone = generate(FakeModel(language, N_VOCAB), sampling=sampling, max_tokens=30)
    target = FakeModel(language, N_VOCAB, stall_share=0.9, hook=waits_for_steps_of(draft, 3))
    paired = generate(target, draft, sampling=sampling, max_tokens=30, pacer=pacer)
    assert paired.tokens == alone.tokens
    assert paired.speculation.provisional_drafted > 0
    assert_nothing_provisional(target, draft)


def test_a_draft_with_a_smaller_vocabulary_changes_no_token() -> None:
    """The families that pad their vocabularies: the draft cannot read every token of the text."""
    language = random_language(3, N_VOCAB)
    alone = generate(FakeModel(language, N_VOCAB), sampling=WARM, max_tokens=40)
    draft = FakeModel(lambda context: language(context)[:6], 6)
    paired = generate(FakeModel(language, N_VOCAB), draft, sampling=WARM, max_tokens=40)
    assert paired.tokens == alone.tokens


def test_a_draft_with_a_larger_vocabulary_changes_no_token() -> None:
    target = counting()
    draft = FakeModel(lambda context: np.append(COUNTING(context), np.float32(99)), N_VOCAB + 1)
    assert generate(target, draft).tokens == generate(counting()).tokens


# What a round yields


def test_a_draft_that_agrees_fills_every_pass() -> None:
    result = generate(
        counting(),
        counting(),
        max_tokens=25,
        n_candidates=1,
        fallback="fixed",
        draft_max=4,
        lookup=False,
    )
    assert result.speculation.accepted_lengths == (4, 4, 4, 4, 4)


def test_log_probabilities_come_where_they_were_asked_for() -> None:
    with Engine(counting()) as engine:
        for n_logprobs, n_top in ((None, []), (0, [0, 0]), (2, [2, 2])):
            request = engine.admit(TextRequest(tuple(PROMPT), GREEDY, 2, n_logprobs=n_logprobs))
            logged = [event.logprobs for event in engine.ask(request)]
            assert [len(each.top) for each in logged if each is not None] == n_top


def test_events_say_whose_token_it_is() -> None:
    settings = EngineSettings(
        n_candidates=1, fallback="fixed", draft_max=2, step_aside=False, lookup=False
    )
    with Engine(counting(), counting(), settings) as engine:
        events, _ = follow(engine.generate(PROMPT, GREEDY, 6))
    assert [event.origin for event in events] == ["draft", "draft", "target"] * 2
    assert [event.round for event in events] == [0, 0, 0, 1, 1, 1]


def test_the_draft_reads_the_end_of_the_path_and_the_new_root_in_one_step() -> None:
    draft = counting()
    rules = {"n_candidates": 1, "fallback": "fixed", "draft_max": 2, "lookup": False}
    generate(counting(), draft, max_tokens=6, **rules)
    assert draft.evaluations == [1, 1, 2, 1, 1][:4]


class CountingBranches(FakeModel):
    most_branches = 0

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        [(_, tree, nodes, *_)] = parts
        self.most_branches = max(self.most_branches, len(tree.leaves(nodes)))
        return super()._evaluate(parts)


def test_for_a_target_that_verifies_lines_no_branches_are_drafted() -> None:
    target = counting(tree_capable=False, max_rollback=8, max_nodes=9, max_branches=1)
    draft = CountingBranches(random_language(8, N_VOCAB), N_VOCAB)
    generate(target, draft, pacer="best-first", fallback="full", lookup=False)
    assert draft.most_branches == 1


def test_max_nodes_of_the_target_bounds_every_pass() -> None:
    target = counting(max_nodes=3)
    generate(target, counting(), draft_max=10)
    assert max(target.evaluations) == 3


def test_trees_are_as_large_as_the_target_was_loaded_for() -> None:
    target = counting(max_nodes=64)
    generate(target, counting(), max_tokens=80, fallback="full")
    assert max(target.evaluations) == 64


@pytest.mark.parametrize(
    "rules", [{"draft_max": 48, "pins_draft_max": True}, {"draft_max": 20}], ids=["usual", "other"]
)
def test_a_number_of_guesses_that_was_asked_for_stays(rules: dict[str, int]) -> None:
    target = counting(max_nodes=64)
    generate(target, counting(), max_tokens=80, fallback="full", **rules)
    assert max(target.evaluations) == 1 + rules["draft_max"]


# Where a text ends


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9])
@pytest.mark.parametrize("with_draft", [False, True])
def test_max_tokens_is_exact(n: int, with_draft: bool) -> None:
    result = generate(counting(), counting() if with_draft else None, max_tokens=n)
    assert len(result.tokens) == n
    assert result.finish_reason == "length"


@pytest.mark.parametrize("with_draft", [False, True])
def test_an_end_of_generation_token_ends_the_text_and_adds_none(with_draft: bool) -> None:
    draft = counting(eog_tokens=[5]) if with_draft else None
    result = generate(counting(eog_tokens=[5]), draft)
    assert result.tokens == (0, 1, 2, 3, 4, 5)
    assert result.text == "abcde"
    assert result.finish_reason == "stop"


def test_nothing_is_drafted_after_the_end_of_a_text() -> None:
    result = generate(
        counting(eog_tokens=[2]), counting(), n_candidates=1, fallback="fixed", lookup=False
    )
    assert result.speculation.drafted == 3


@pytest.mark.parametrize("with_draft", [False, True])
def test_a_text_that_fills_the_context_says_so(with_draft: bool) -> None:
    draft = counting(n_ctx=16) if with_draft else None
    result = generate(counting(n_ctx=16), draft, max_tokens=None)
    assert len(result.tokens) == 16 - len(PROMPT) + 1
    assert result.finish_reason == "context"


def test_a_draft_with_a_shorter_context_drops_out_and_says_so() -> None:
    result = generate(counting(), counting(n_ctx=10), max_tokens=30)
    assert result.tokens == tuple(n % 10 for n in range(30))
    hold_sentence(result.notes[0])


# What cannot be meant


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt": []},
        {"prompt": [1] * 600},
        {"prompt": [N_VOCAB]},
        {"prompt": [-1]},
        {"max_tokens": -1},
        {"stop": [""]},
        {"sampling": SamplingParams(logit_bias={N_VOCAB: 1.0})},
        {"pacer": "best-frist"},
        {"fallback": "none"},
        {"draft_max": 0},
        {"n_candidates": 0},
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(request_: Any) -> None:
    with refuses(UsageError):
        generate(counting(), **request_)


def test_a_second_generation_of_the_same_thread_has_the_first_written_to_its_end() -> None:
    with Engine(counting()) as engine:
        first = engine.generate(PROMPT, GREEDY, 5)
        next(first)
        assert finish(engine.generate(PROMPT, GREEDY, 3)).tokens == (0, 1, 2)
        assert finish(first).tokens == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_recurrent_state_is_decoded_without_a_tree_and_the_result_says_so(role: str) -> None:
    target, draft = counting(tree_capable=role != "target"), counting(tree_capable=role != "draft")
    result = generate(target, draft)
    assert result.tokens == generate(counting()).tokens
    hold_sentence(result.notes[0])
    assert draft.evaluations == []
