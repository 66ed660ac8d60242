"""Texts and what is kept of earlier ones share the target's KV cells: a text waits, rests or is
written again where they do not suffice, and is the text that it is alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.engine import text as engine_text
from edgespec.engine.settings import EngineSettings
from edgespec.ports import PassPart, Progress
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from engine_cases import AskedEngine as Engine
from engine_cases import assert_nothing_provisional, in_turn
from fake_model import FakeModel, blend, random_language
from one_tree import OneTree

N_VOCAB, N_CTX, STEP, TILE = 24, 64, 8, 6
LANGUAGE = random_language(1, N_VOCAB)


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_text, "STEP", STEP)


class TiledTexts(FakeModel):
    """Prompts of TILE tokens and more are computed in tiles, all else by row; the logits depend on
    the kernel of each token."""

    def __init__(self, n_texts: int, n_cells: int = 0, n_ctx: int = N_CTX, tile: int = TILE):
        super().__init__(
            LANGUAGE, N_VOCAB, n_texts=n_texts, n_ctx=n_ctx, n_cells=n_cells, gives_first=True
        )
        self.info = replace(self.info, prompt_tile=tile, prompt_batch=16)
        self.kinds = ["" for _ in range(n_texts)]
        self.most_held = 0
        self._of_root = ["r"] * n_texts

    def _kind(self, slot: int, n_tokens: int) -> str:
        is_tiled = 0 < self.info.prompt_tile <= self.committed_of(slot) + n_tokens
        return "t" if is_tiled else "r"

    def _read(self, tokens: Sequence[int], slot: int, progress: Progress | None) -> None:
        kind = self._kind(slot, len(tokens))
        super()._read(tokens, slot, progress)
        self.kinds[slot] += len(tokens) * kind

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        kinds = []
        for part in parts:
            is_alone = len(parts) == 1 and part.reads and not part.by_row
            kinds.append(self._kind(part.slot, part.n_rows) if is_alone else "r")
        logits = super()._evaluate(parts)
        for part, kind, rows in zip(parts, kinds, logits, strict=True):
            self.kinds[part.slot] += len(part.reads) * kind
            self._of_root[part.slot] = kind
            rows[:, :4] += np.float32(self.kinds[part.slot].count("t") % 5)
        return logits

    def commit(
        self, tree: OneTree, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        super().commit(tree, path, keep, slot)
        self.kinds[slot] += len(path) * self._of_root[slot]
        self.most_held = max(self.most_held, sum(map(len, self.kinds)))

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        super().truncate(n_tokens, slot)
        self.kinds[slot] = self.kinds[slot][: self.committed_of(slot)]

    def share(self, source: int, target: int, n_tokens: int) -> None:
        super().share(source, target, n_tokens)
        self.kinds[target] = self.kinds[source][:n_tokens]


def asked(n: int, n_prompt: int, n_tokens: int | None) -> TextRequest:
    prompt = tuple((n + 5 * place) % N_VOCAB for place in range(n_prompt))
    return TextRequest(prompt, SamplingParams(temperature=0.7, seed=n), n_tokens)


def alone(terms: TextRequest, **options: Any) -> tuple[int, ...]:
    with Engine(TiledTexts(1, **options)) as engine:
        text = engine.admit(terms)
        list(engine.ask(text))
        return text.result().tokens


def test_texts_that_do_not_fit_together_wait_for_each_other() -> None:
    target, terms = TiledTexts(3, N_CTX), [asked(n, 40, 20) for n in range(3)]
    with Engine(target) as engine:
        texts = [engine.admit(each) for each in terms]
        streams = [engine.ask(text) for text in texts]
        for stream in streams:
            stream.run_ahead()
        for stream in streams:
            list(stream)
    assert [text.result().tokens for text in texts] == [alone(each) for each in terms]
    assert 50 < target.most_held <= N_CTX
    assert max(target.evaluations) == 1, "one at a time"


def test_texts_are_written_together_as_long_as_what_they_wrote_fits() -> None:
    """None says how long it will be; the later ones are set back when the cells do not suffice."""
    target, terms = TiledTexts(3, N_CTX), [asked(n, TILE, None) for n in range(3)]
    with Engine(target) as engine:
        texts = [engine.admit(each) for each in terms]
        in_turn([engine.ask(text) for text in texts])
        assert texts[2].held is not None, "it was set back"
    assert [text.result().tokens for text in texts] == [alone(each) for each in terms]
    assert max(target.evaluations) >= 3
    assert_nothing_provisional(target)


def test_a_text_with_a_prompt_shorter_than_a_tile_is_set_back_to_rows() -> None:
    """Its prompt and what it wrote were read again as one prompt, in tiles."""
    target, terms = TiledTexts(2, N_CTX), [asked(0, 11, 30), asked(1, 1, 30)]
    with Engine(target) as engine:
        texts = [engine.admit(each) for each in terms]
        in_turn([engine.ask(text) for text in texts])
        assert len(texts[1].reading) > len(texts[1].prompt) + TILE, "it was set back"
    assert [text.result().tokens for text in texts] == [alone(each) for each in terms]


def test_a_text_whose_prompt_needs_a_pass_of_its_own_is_set_back_to_rows() -> None:
    """It failed with IndexError where prompts share no pass and give no logits."""

    def model(n_texts: int, n_cells: int = 0) -> FakeModel:
        made = FakeModel(LANGUAGE, N_VOCAB, n_texts=n_texts, n_ctx=N_CTX, n_cells=n_cells)
        made.info = replace(made.info, prompts_share_passes=False)
        return made

    terms = [asked(n, 6, 30) for n in range(3)]
    with Engine(model(3, N_CTX)) as engine:
        texts = [engine.admit(each) for each in terms]
        in_turn([engine.ask(text) for text in texts])
        assert texts[2].held is not None, "it was set back"
    for each, text in zip(terms, texts, strict=True):
        with Engine(model(1)) as engine:
            list(engine.ask(expected := engine.admit(each)))
        assert text.result().tokens == expected.result().tokens


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_text_that_is_set_back_is_the_text_alone(data: st.DataObject) -> None:
    """Short and long prompts, in tiles and by row, with and without a draft or a limit."""
    n_texts, tile = data.draw(st.integers(2, 4)), data.draw(st.sampled_from([0, TILE]))
    terms = [
        asked(n, data.draw(st.integers(1, 50)), data.draw(st.sampled_from([3, 30, 60])))
        for n in range(data.draw(st.integers(2, 6)))
    ]
    n_cells = data.draw(st.sampled_from([N_CTX, N_CTX + 10, 2 * N_CTX]))
    language = blend(LANGUAGE, random_language(2, N_VOCAB), 0.4)
    draft = FakeModel(language, N_VOCAB, n_texts=n_texts, n_ctx=N_CTX)
    rules = EngineSettings(step_aside=False)
    target = TiledTexts(n_texts, n_cells, tile=tile)
    with Engine(target, draft if data.draw(st.booleans()) else None, rules) as engine:
        texts = [engine.admit(each) for each in terms]
        in_turn([engine.ask(text) for text in texts])
    for each, text in zip(terms, texts, strict=True):
        with Engine(TiledTexts(1, tile=tile), None, rules) as engine:
            expected = engine.admit(each)
            list(engine.ask(expected))
        assert text.result().tokens == expected.result().tokens
    assert_nothing_provisional(target)


def test_a_short_text_between_two_turns_leaves_the_first_ones_prefix() -> None:
    target = TiledTexts(2, N_CTX)
    with Engine(target) as engine:
        first = engine.admit(asked(1, 40, 4))
        list(engine.ask(first))
        list(engine.ask(engine.admit(asked(2, 5, 4))))
        prompt = (*first.prompt, *first.result().tokens, 3, 4)
        turn = engine.admit(TextRequest(prompt, max_tokens=2))
        list(engine.ask(turn))
    assert turn.tally.reused_tokens >= 40 - TILE


def test_the_oldest_kept_text_goes_where_a_new_one_needs_its_cells() -> None:
    target = TiledTexts(4, N_CTX)
    with Engine(target) as engine:
        for n in range(2):
            list(engine.ask(engine.admit(asked(n, 20, 2))))
        list(engine.ask(engine.admit(asked(7, 28, 2))))
        again = [engine.admit(asked(n, 20, 1)) for n in (1, 0)]
        for text in again:
            list(engine.ask(text))
    assert [text.tally.reused_tokens > 0 for text in again] == [True, False]
