"""Heads guess from the target's hidden states: the loop gives them the right ones, in time, and the
text is the target's own whatever they guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from source_cases import ask, text_of

from edgespec.engine import engine as engine_module
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.head_source import HeadSource
from edgespec.pool import line
from edgespec.ports import LanguageModel, PassPart, Progress
from edgespec.rules.sampling import SamplingParams
from edgespec.values import GenerationResult
from engine_cases import AskedEngine as Engine
from engine_cases import assert_nothing_provisional, finish, waits_for_steps_of
from fake_model import FakeModel, blend, fake_features, random_language
from port_calls import prefill

N_VOCAB = 40
TARGET = random_language(0, N_VOCAB, order=6)
DRAFT = blend(TARGET, random_language(1, N_VOCAB), 0.2)
PROMPT = [5, 9, 2, 30, 11, 7]


class FakeHead(FakeModel):
    """A draft that asserts that it knows the features it reads, and that they are its text's."""

    def __init__(self, **settings: object) -> None:
        super().__init__(DRAFT, N_VOCAB, **settings)  # type: ignore[arg-type]
        self.info = replace(self.info, feature_layers=(0, 0, 0), feature_values=2)
        self.known: dict[int, np.ndarray] = {}
        """Features by position."""
        self.n_predicted = 0
        """Nodes that were evaluated with features of the head's own."""

    def take_features(self, position: int, rows: np.ndarray) -> None:
        assert rows.shape[1:] == (3, 2), "three layers of two values"
        self.drop_features(position)
        self.known |= {position + n: row[0].copy() for n, row in enumerate(rows)}

    def drop_features(self, n_tokens: int) -> None:
        self.known = {position: row for position, row in self.known.items() if position < n_tokens}

    def lacks_features(self, n_tokens: int) -> bool:
        return any(n not in self.known for n in range(max(0, len(self.committed) - 1), n_tokens))

    def _read(self, tokens: Sequence[int], slot: int, progress: Progress | None) -> None:
        super()._read(tokens, slot, progress)
        for n in range(len(self.committed) - 1):
            self._check(self.committed[: n + 1])

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        assert self.committed, "nothing follows the first token of a text alone"
        [(_, tree, nodes, *_)] = parts
        logits = super()._evaluate(parts)
        for node in nodes:
            before = [*self.committed, *tree.token[tree.path(node)].tolist()][:-1]
            if len(before) - 1 in self.known:
                self._check(before)
            else:
                assert node != 0, "the root's features are the target's"
                self.n_predicted += 1
        return logits

    def _check(self, context: Sequence[int]) -> None:
        known = self.known[len(context) - 1]
        assert np.array_equal(known, fake_features(context)), "features of another text"


def run(
    draft: LanguageModel | None,
    temperature: float = 0.0,
    n_tokens: int = 60,
    target: LanguageModel | None = None,
    settings: EngineSettings | None = None,
) -> GenerationResult:
    sampling = SamplingParams(temperature=temperature, seed=4)
    target = target or FakeModel(TARGET, N_VOCAB)
    with Engine(target, draft, settings or EngineSettings()) as engine:
        return finish(engine.generate(PROMPT, sampling, n_tokens))


@pytest.mark.costly
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("lookup", [False, True])
def test_the_text_is_the_target_s_own(temperature: float, lookup: bool) -> None:
    head = FakeHead()
    settings = EngineSettings(lookup=lookup)
    with_head = run(head, temperature, settings=settings)
    alone = run(None, temperature)
    assert with_head.tokens == alone.tokens
    assert with_head.speculation.accepted > 20
    assert head.n_predicted > 0


@pytest.mark.costly
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("draft_limits", [(1, 1), (3, 2), (64, 32)])
@pytest.mark.parametrize("n_ctx", [1, 7, 20])
def test_no_limit_of_the_head_changes_a_token(
    temperature: float, draft_limits: tuple[int, int], n_ctx: int
) -> None:
    max_nodes, max_branches = draft_limits
    head = FakeHead(n_ctx=n_ctx, max_nodes=max_nodes, max_branches=max_branches)
    target = FakeModel(TARGET, N_VOCAB, n_ctx=50, stall_share=0.9)
    with_head = run(head, temperature, 25, target)
    alone = run(None, temperature, 25)
    assert with_head.tokens == alone.tokens
    assert_nothing_provisional(target, head)


@pytest.mark.slow
def test_a_head_grows_the_tree_beside_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "LEAST_BESIDE", 0.0)
    head = FakeHead()
    target = FakeModel(TARGET, N_VOCAB, stall_share=0.9, hook=waits_for_steps_of(head, 3))
    with_head = run(head, target=target)
    assert with_head.tokens == run(None).tokens
    assert with_head.speculation.provisional_drafted > 0
    assert_nothing_provisional(target, head)


@pytest.mark.costly
@pytest.mark.parametrize("n_steps", [0, 1, 5, 9])
def test_a_head_that_fails_leaves_an_engine_that_works(n_steps: int) -> None:
    def fail(model: FakeModel) -> None:
        if len(model.evaluations) == n_steps:
            raise RuntimeError("the head broke")

    head, target = FakeHead(hook=fail), FakeModel(TARGET, N_VOCAB)
    with Engine(target, head, EngineSettings(lookup=False)) as engine:
        with pytest.raises(RuntimeError):
            list(engine.generate(PROMPT, SamplingParams(), 60))
        assert_nothing_provisional(target, head)
        head.hook = None
        tokens = [event.token for event in engine.generate(PROMPT, SamplingParams(), 60)]
    assert tuple(tokens) == run(None).tokens


@pytest.mark.slow
def test_accepted_tokens_are_read_again_with_the_target_s_features() -> None:
    """The committed tokens of the head were all evaluated or read when theirs were known."""
    head, target = FakeHead(), FakeModel(TARGET, N_VOCAB)
    run(head, target=target)
    assert sorted(head.known) == list(range(len(target.committed)))
    assert len(head.committed) > len(PROMPT)
    assert head.committed == target.committed[: len(head.committed)]


def test_a_text_whose_features_nobody_gave_goes_on_without_guesses_of_the_head() -> None:
    head, target = FakeHead(), FakeModel(TARGET, N_VOCAB)
    with Engine(target, head, EngineSettings(lookup=False)) as engine:
        target.give_features((0,), lambda position, rows: None)
        prefill(target, PROMPT[:-1])
        target.give_features(head.info.feature_layers, head.take_features)
        engine.slots[0].committed += PROMPT[:-1]
        tokens = [event.token for event in engine.generate(PROMPT, SamplingParams(), 20)]
    assert tuple(tokens) == run(None, n_tokens=20).tokens
    assert not head.evaluations


def test_a_target_that_gives_no_features_decodes_alone_and_says_why() -> None:
    silent = FakeModel(TARGET, N_VOCAB)
    silent.info = replace(silent.info, gives_features=False)
    result = run(FakeHead(), target=silent)
    assert result.tokens == run(None).tokens
    assert "gives no hidden states" in result.notes[0]


def fed(text: Sequence[int], n_read: int) -> tuple[FakeHead, HeadSource]:
    """A head with the features of a text, and a source that has read its first tokens."""
    head = FakeHead()
    rows = np.stack([np.stack([fake_features(text[: n + 1])] * 3) for n in range(len(text))])
    head.take_features(0, rows)
    source = HeadSource(head, 4, N_VOCAB, frozenset())
    source.read(text_of(text[:n_read], 1))
    return head, source


def test_nothing_is_guessed_after_the_first_token_of_a_text() -> None:
    source, text = HeadSource(FakeHead(), 4, N_VOCAB, frozenset()), text_of([], 5)
    assert source.obstacle(text) is None
    assert source.open(line(0, [5]), text) == []


def test_only_children_of_evaluated_nodes_are_open() -> None:
    """A lookup hangs long lines, through which the head goes a step at a time."""
    _, source = fed(PROMPT, len(PROMPT))
    pool, text = line(0, [3, 4, 5]), text_of(PROMPT, 3)
    assert source.open(pool, text) == [0]
    ask(source, pool, [0], text)
    assert source.open(pool, text) == [1]


def test_features_after_a_rewind_are_forgotten() -> None:
    head, source = fed(PROMPT, 3)
    source.rest(text_of(PROMPT[:3]))
    assert len(head.known) == len(PROMPT)
    source.rewind(0, 4)
    assert sorted(head.known) == [0, 1, 2, 3]
    reason = "the target's hidden states of this text are not known"
    assert source.obstacle(text_of(PROMPT[:5], 1)) == reason
