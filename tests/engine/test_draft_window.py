"""The draft's memory of a text that is longer than its context."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.engine.text import Text
from edgespec.errors import Cancelled
from edgespec.ports import PassPart, Progress
from edgespec.rules.sampling import SamplingParams
from edgespec.values import GenerationResult
from engine_cases import GREEDY, N_VOCAB, PROMPT, WARM, finish, forget, generate
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, blend, random_language

LANGUAGE = random_language(1, N_VOCAB)
DRAFT = blend(LANGUAGE, random_language(2, N_VOCAB), 0.3)
LONG = [token for _, token in zip(range(260), itertools.cycle(range(10)), strict=False)]


def models(draft_ctx: int = 64) -> tuple[FakeModel, FakeModel]:
    return FakeModel(LANGUAGE, N_VOCAB), FakeModel(DRAFT, N_VOCAB, n_ctx=draft_ctx)


def drafted(draft_ctx: int = 64, **settings: Any) -> GenerationResult:
    return generate(*models(draft_ctx), max_tokens=400, lookup=False, draft_max=6, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_a_text_longer_than_the_drafts_context_stays_the_same(
    sampling: SamplingParams, overlap: bool
) -> None:
    alone = generate(models()[0], sampling=sampling, max_tokens=400)
    pair = drafted(sampling=sampling, no_overlap=not overlap)
    assert pair.tokens == alone.tokens
    assert not pair.notes


@pytest.mark.slow
def test_guesses_are_as_good_as_with_a_context_for_all() -> None:
    window, whole = drafted(), drafted(draft_ctx=512)
    assert window.speculation.target_passes <= 1.05 * whole.speculation.target_passes < 200


def test_of_a_long_prompt_the_draft_reads_the_last_half_of_its_context() -> None:
    target, draft = models(draft_ctx=128)
    generate(target, draft, prompt=LONG, max_tokens=2, lookup=False)
    assert sum(draft.prefilled) == 64
    assert draft.committed[:8] == tuple(LONG[-65:-57])


@pytest.mark.costly
@pytest.mark.parametrize("n_kept", [2, 150, 240, 259])
def test_a_text_that_begins_like_the_last_one_is_the_same(n_kept: int) -> None:
    prompt = [*LONG[:n_kept], 3, 1, 4]
    alone = generate(models()[0], prompt=prompt)
    with Engine(*models(), EngineSettings(step_aside=False, lookup=False)) as engine:
        finish(engine.generate(LONG, GREEDY, 50))
        assert finish(engine.generate(prompt, GREEDY, 20)).tokens == alone.tokens
        assert finish(engine.generate(PROMPT, GREEDY, 20)).speculation.accepted > 0


def test_texts_that_share_a_long_beginning_share_none_of_a_moved_window() -> None:
    target = FakeModel(LANGUAGE, N_VOCAB, n_texts=2)
    draft = FakeModel(DRAFT, N_VOCAB, n_ctx=64, n_texts=2)
    expected = generate(models()[0], prompt=[*LONG, 5])
    with Engine(target, draft, EngineSettings(step_aside=False, lookup=False)) as engine:
        first = engine.generate(LONG, GREEDY, 40)
        next(first)
        second = engine.generate([*LONG, 5], GREEDY, 20)
        assert finish(second).tokens == expected.tokens
        finish(first)


def test_a_moved_window_is_not_saved_as_the_texts_beginning() -> None:
    target, draft = models()
    settings = EngineSettings(step_aside=False, lookup=False)
    with Engine(target, draft, settings, clock=lambda: 0.0) as engine:
        finish(engine.generate(PROMPT, GREEDY, 20))
        assert engine.slots[0].n_leading == draft.committed_of(0) > 20
        finish(engine.generate(LONG, GREEDY, 20))
        assert engine.slots[0].n_leading == 0


def test_a_window_whose_move_was_cancelled_is_not_the_beginning_of_the_text() -> None:
    class Batched(FakeModel):
        """Reads in passes of 8, and is cancelled in front of the third of a move."""

        in_third: Callable[[], None] | None = None

        def _read(self, tokens: Sequence[int], slot: int, progress: Progress | None) -> None:
            for place in range(0, len(tokens), 8):
                if self.in_third is not None and place == 16:
                    self.in_third()
                    raise Cancelled("stop")
                super()._read(tokens[place : place + 8], slot, progress)

    language = random_language(1, N_VOCAB, sharpness=6.0)
    target = FakeModel(language, N_VOCAB, n_ctx=512, max_nodes=16)
    draft = Batched(language, N_VOCAB, n_ctx=64, max_nodes=16)
    rules = EngineSettings(step_aside=False, lookup=False)
    with Engine(target, draft, rules) as engine:
        text = engine.generate([1 + n % 7 for n in range(40)], GREEDY, 100)
        (source,) = engine.sources
        read = source.read

        def move(its: Text) -> None:
            is_move = source._must_move(0, len(its.slot.committed))  # type: ignore[attr-defined]
            draft.in_third = text.cancel if is_move and len(its.slot.committed) > 50 else None
            read(its)

        source.read = move  # type: ignore[method-assign]
        assert finish(text).finish_reason == "cancelled"
        n_leading = source.n_leading(0)  # type: ignore[attr-defined]
        assert draft.text(0)[:n_leading] == engine.committed[:n_leading]


def test_a_guess_beyond_the_drafts_vocabulary_is_not_asked_about() -> None:
    """It ended the text where llama.cpp refused the token."""

    class Strict(FakeModel):
        def evaluate(
            self, parts: Sequence[PassPart], progress: Progress | None = None
        ) -> list[np.ndarray]:
            for part in parts:
                tokens = [*part.reads, *part.pool.token[[*part.nodes]].tolist()]
                assert max(tokens, default=0) < self.info.n_vocab
            return super().evaluate(parts, progress)

    def language(context: Sequence[int]) -> np.ndarray:
        row = np.zeros(12, np.float32)
        row[context[-1] % 8 + 1] = 10.0
        return row

    draft = Strict(lambda context: language(context)[:10], 10, max_nodes=16)
    target = FakeModel(language, 12, max_nodes=16)
    with Engine(target, draft, EngineSettings(step_aside=False)) as engine:
        finish(engine.generate([1, 2, 3, 11, 4, 5, 6, 11], GREEDY, 3))
        forget(engine)
        assert len(finish(engine.generate([9, 9, 1, 2], GREEDY, 12)).tokens) == 12
