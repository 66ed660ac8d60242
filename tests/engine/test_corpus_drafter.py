"""Guesses from a corpus."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgespec.engine.drafting.corpus import KINDS, CorpusDrafter
from edgespec.engine.loop import Engine, EngineSettings
from edgespec.engine.sampling import SamplingParams
from edgespec.testing.fake_model import FakeModel, random_language
from edgespec.tree import ROOT, TokenTree
from engine_cases import GREEDY, N_VOCAB, WARM, assert_nothing_provisional, counting, finish


class Counting:
    """A corpus in which digits are counted, and nothing else is found."""

    def __init__(self, alike: int = 9) -> None:
        self.alike = alike
        self.asked: list[Sequence[int]] = []

    def continuations(self, words: Sequence[int]) -> list[tuple[int, int]]:
        self.asked.append(tuple(words))
        return [((words[-1] + 1) % 10, self.alike)] if words[-1] < 10 else []


class Misleading:
    """One that knows every text, and is always wrong."""

    def continuations(self, words: Sequence[int]) -> list[tuple[int, int]]:
        return [((words[-1] + 5) % 10, 9)]


def settings(**changes: object) -> EngineSettings:
    return EngineSettings(step_aside=False, draft_max=6, **changes)  # type: ignore[arg-type]


def test_a_node_is_looked_up_with_the_text_before_it() -> None:
    corpus = Counting()
    drafter = CorpusDrafter(corpus)
    drafter.catch_up([7, 8])
    tree = TokenTree(9, 8)
    child = tree.add(ROOT, 0, 0.9)
    drafter.step(tree, [ROOT, child])
    assert corpus.asked == [(7, 8, 9), (7, 8, 9, 0)]
    assert [guess.token for guess in drafter.guesses(int(tree.key[child])) or ()] == [1]


def test_too_little_in_common_is_no_guess() -> None:
    drafter = CorpusDrafter(Counting(alike=2))
    tree = TokenTree(3, 8)
    drafter.step(tree, [ROOT])
    assert drafter.guesses(int(tree.key[ROOT])) == ()


def test_places_share_a_guess_by_what_they_have_in_common() -> None:
    class Torn:
        def continuations(self, words: Sequence[int]) -> list[tuple[int, int]]:
            return [(1, 5), (2, 4), (2, 4), (1, 3)]

    drafter = CorpusDrafter(Torn())
    tree = TokenTree(3, 8)
    drafter.step(tree, [ROOT])
    shares = {guess.token: guess.probability for guess in drafter.guesses(0) or ()}
    assert shares == pytest.approx({1: 1.25 / 2.25, 2: 1 / 2.25})


def test_it_guesses_alone_and_says_so() -> None:
    with Engine(counting(), None, settings(), drafters=[CorpusDrafter(Counting())]) as engine:
        done = finish(engine.generate([1, 2, 3, 4], GREEDY, 20))
    assert done.speculation.tokens_per_pass > 3
    (brought,) = (by for by in done.speculation.sources if by.source == "corpus")
    assert brought.accepted > 10


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_the_text_is_the_same_with_any_corpus(sampling: SamplingParams) -> None:
    texts = []
    for drafters in ([], [CorpusDrafter(Counting())], [CorpusDrafter(Misleading())]):
        target = FakeModel(random_language(3, N_VOCAB), N_VOCAB)
        with Engine(target, None, settings(), drafters=drafters) as engine:
            texts.append(finish(engine.generate([1, 2, 3, 4], sampling, 30)).tokens)
        assert_nothing_provisional(target)
    assert texts[0] == texts[1] == texts[2]


def test_a_corpus_that_is_wrong_is_soon_not_believed() -> None:
    drafter = CorpusDrafter(Misleading())
    with Engine(counting(), None, settings(), drafters=[drafter]) as engine:
        finish(engine.generate([1, 2, 3, 4], GREEDY, 30))
    assert drafter.belief.of("10!") < 0.3 < KINDS["10!"]


def test_the_next_text_begins_with_its_own_words() -> None:
    corpus = Counting()
    with Engine(counting(), None, settings(), drafters=[CorpusDrafter(corpus)]) as engine:
        finish(engine.generate([1, 2, 3, 4], GREEDY, 12))
        corpus.asked.clear()
        finish(engine.generate([1, 2, 9, 9], GREEDY, 5))
    assert corpus.asked[0][:4] == (1, 2, 9, 9)
