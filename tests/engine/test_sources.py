"""Several sources in one tree: the seam, held by a small second implementation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from source_cases import ask, text_of

from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.model_source import ModelSource
from edgespec.engine.sources.source import Opinion, Source
from edgespec.engine.text import Text
from edgespec.pool import Pool, line
from engine_cases import GREEDY, N_VOCAB, PROMPT, WARM, counting, finish, generate
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, blend, random_language


class Counter(Source):
    """Sure that the next token is the last one and `stride`."""

    kinds = {"counted": 0.9}  # noqa: RUF012

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.name = "counter"
        self.calls: list[str] = []
        self._stride = stride

    def answer(self, pool: Pool, node: int, text: Text) -> Opinion | None:
        return self.opinion("counted", [(int(pool.token[node]) + self._stride) % 10], [1.0])

    def obstacle(self, text: Text) -> str | None:
        return "it counts below ten" if text.last_token > 9 else None

    def cancel(self) -> None:
        self.calls.append("cancel")


def model_source(model: FakeModel) -> ModelSource:
    return ModelSource(model, 8, N_VOCAB, frozenset())


class Taking(FakeModel):
    """A draft that takes the committed tokens of its target over."""

    def __init__(self, target: FakeModel, *given: Any) -> None:
        super().__init__(*given)
        self.info = replace(self.info, takes_prefix=True)
        self._target, self.taken = target, list[int]()

    def take_prefix(self, n_tokens: int, slot: int) -> None:
        begin, text = self.committed_of(slot), self._texts[slot]
        assert not text.cells, "guesses are there"
        text.committed += self._target.committed[begin:n_tokens]
        self.taken += range(begin, n_tokens)


@pytest.mark.parametrize("no_overlap", [True, False])
def test_a_draft_of_the_same_shape_holds_only_what_its_target_has_computed(
    no_overlap: bool,
) -> None:
    """Also in place of its own guesses, once these are accepted."""
    language = random_language(2, N_VOCAB)
    target = FakeModel(language, N_VOCAB)
    draft = Taking(target, blend(language, random_language(3, N_VOCAB), 0.2), N_VOCAB)
    result = generate(target, draft, max_tokens=60, no_overlap=no_overlap)
    assert result.speculation.accepted > 20
    assert not sum(draft.prefilled)
    n_taken = 1 + max(draft.taken)
    assert sorted(draft.taken) == [*range(n_taken)]
    assert n_taken > len(PROMPT) + 20
    assert result.tokens == generate(FakeModel(language, N_VOCAB), max_tokens=60).tokens


def test_a_drafter_without_a_model_saves_passes() -> None:
    with Engine(counting(), sources=[Counter()]) as engine:
        result = finish(engine.generate(PROMPT, GREEDY, 40))
    assert result.tokens == generate(counting(), max_tokens=40).tokens
    assert result.speculation.tokens_per_pass > 4


@pytest.mark.costly
@pytest.mark.parametrize("stride", [1, 3])
def test_a_drafter_beside_a_model_changes_no_token(stride: int) -> None:
    language = random_language(2, N_VOCAB)
    draft = FakeModel(blend(language, random_language(3, N_VOCAB), 0.3), N_VOCAB)
    alone = generate(FakeModel(language, N_VOCAB), sampling=WARM, max_tokens=60)
    with Engine(
        FakeModel(language, N_VOCAB),
        draft,
        EngineSettings(step_aside=False),
        sources=[Counter(stride)],
    ) as engine:
        assert finish(engine.generate(PROMPT, WARM, 60)).tokens == alone.tokens
        assert draft.n_provisional == 0


class Moving(Pool):
    """A pool that moves its arrays whenever a node is added."""

    def _append(self, *values: Any) -> int:
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                setattr(self, name, array[: self.n or 1].copy())
        return super()._append(*values)


def test_a_pool_that_grows_anywhere_changes_no_token() -> None:
    """A text ended with an error if the node at its new root was the one for which it grew."""
    language = random_language(2, N_VOCAB)
    draft = FakeModel(blend(language, random_language(3, N_VOCAB), 0.3), N_VOCAB)
    alone = generate(FakeModel(language, N_VOCAB), sampling=WARM, max_tokens=60)
    with Engine(FakeModel(language, N_VOCAB), draft) as engine:
        engine.pool = engine.slots[0].pool = Moving(1)
        assert finish(engine.generate(PROMPT, WARM, 60)).tokens == alone.tokens


def test_a_drafter_that_cannot_follow_rests_and_the_others_go_on() -> None:
    target = FakeModel(random_language(1, N_VOCAB), N_VOCAB)
    with Engine(target, sources=[Counter()], settings=EngineSettings(step_aside=False)) as engine:
        result = finish(engine.generate([11, 11, 11, 11], GREEDY, 5))
    (note,) = result.notes
    assert "the counter could not follow after 3 tokens (it counts below ten)" in note


def test_a_model_s_damaged_logits_teach_nothing() -> None:
    source = model_source(FakeModel(lambda _: np.full(N_VOCAB, np.nan, np.float32), N_VOCAB))
    pool, text = line(0, [3]), text_of(PROMPT, 3)
    source.read(text)
    assert ask(source, pool, [0], text) == [None]
    source.follow(pool, text, [0], pool.add(0, 5))
    assert "best logit is nan" in str(source.obstacle(text_of([*PROMPT, 3], 5)))


def test_accepted_tokens_are_read_with_the_next_root_and_only_if_it_is_guessed_at() -> None:
    """They were read at the end of each round: a step in vain if the next one had no guesses."""
    model = counting()
    source, pool = model_source(model), line(0, [3, 4, 5])
    source.read(text_of(PROMPT, 3))
    ask(source, pool, [0], text_of(PROMPT, 3))
    n_before, text = model.n_passes, text_of([*PROMPT, 3, 4], 5)
    source.follow(pool, text, [0, 1], 2)
    pool.follow(2)
    source.read(text)
    assert model.n_passes == n_before
    (said,) = ask(source, pool, [2], text)
    assert model.n_passes == n_before + 1
    assert model.committed == (*PROMPT, 3, 4)
    other = model_source(counting())
    other.read(text)
    assert said == ask(other, pool, [2], text)[0] is not None
    assert source.guess(pool, [node := pool.add(2, 6)], {0: text}) == [node]


def test_several_texts_are_asked_about_in_one_pass() -> None:
    model = counting(n_texts=2)
    source, pool = model_source(model), Pool()
    texts = {slot: text_of([1, 2, slot], 3, slot=slot) for slot in (0, 1)}
    roots = [pool.plant(slot, 3) for slot in texts]
    for text in texts.values():
        source.read(text)
    n_before = model.n_passes
    assert source.guess(pool, roots, texts) == roots
    assert model.n_passes == n_before + 1
    assert all(source.said(text) for text in texts.values())
