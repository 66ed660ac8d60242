"""Guesses from the text itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_cases import ask, text_of, tokens_of

from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources import lookup as lookup_module
from edgespec.engine.sources.lookup import BYTES, KINDS, LookupSource, TextIndex, extend, truncate
from edgespec.engine.sources.lookup import after as places
from edgespec.engine.sources.mixer import Mixer
from edgespec.engine.sources.source import Opinion
from edgespec.pool import line
from edgespec.ports.text_request import TextRequest
from engine_cases import GREEDY, N_VOCAB, finish
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, fixed_text, random_language

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def index_of(tokens: Sequence[int]) -> TextIndex:
    index = TextIndex()
    extend(index, tokens)
    return index


def after(text: Sequence[int], *tail: int) -> list[list[int] | None]:
    """Guesses after each token of the line `tail` behind `text`."""
    source, pool, its_text = LookupSource(), line(0, tail), text_of(text, tail[0])
    source.begin(its_text)
    source.read(its_text)
    return [tokens_of(said) for said in ask(source, pool, range(len(tail)), its_text)]


# The index


@given(TEXTS, st.lists(st.integers(0, 3), min_size=2, max_size=6))
def test_what_followed_the_words_is_found_the_last_ones_first(
    text: list[int], words: list[int]
) -> None:
    expected = []
    for place in range(len(text) - 2, 0, -1):
        alike = 0
        while alike < min(len(words), place + 1) and text[place - alike] == words[-1 - alike]:
            alike += 1
        if alike >= 2:
            expected.append((text[place + 1], alike))
    found = places(index_of(text), words)
    # other pairs may share a hash and take a few of the places that a search looks at
    assert found == expected[: len(found)]
    assert len(found) >= min(len(expected), lookup_module.MAX_PLACES // 2)


@given(TEXTS, st.integers(0, 60), TEXTS)
def test_a_text_cut_short_and_gone_on_is_the_text_that_it_is(
    text: list[int], n_kept: int, rest: list[int]
) -> None:
    index, whole = index_of(text), text[:n_kept] + rest
    truncate(index, min(n_kept, len(text)))
    extend(index, rest)
    assert index.tokens.tolist() == whole
    for a in range(4):
        for b in range(4):
            assert places(index, [a, b]) == places(index_of(whole), [a, b])


# The source


@pytest.mark.parametrize(
    ("text", "tail", "expected"),
    [
        ([1, 2, 3, 9, 1, 2], [3], [[9]]),
        ([1, 2, 3, 4, 5, 6, 0, 1], [2, 3, 4], [[3], [4], [5]]),
        ([1, 2, 7, 1, 2, 8, 1, 2, 8, 1], [2], [[8, 7]]),
        ([1, 2, 7, 1, 2, 8, 1], [2], [[8, 7]]),
        ([5, 6, 1, 2, 7, 0, 1, 2, 8, 0, 1, 2, 8, 5, 6, 1], [2], [[7, 8]]),
        ([1, 2, 3], [9], [None]),
    ],
    ids=["the same words", "a branch", "the most frequent", "the last", "more in common", "new"],
)
def test_what_followed_is_guessed(
    text: list[int], tail: list[int], expected: list[list[int] | None]
) -> None:
    assert after(text, *tail) == expected


def test_nothing_is_guessed_after_the_end_of_a_text() -> None:
    source, pool = LookupSource(frozenset([3])), line(0, [2, 3])
    assert source.open(pool, text_of([1], 2)) == [0]


def test_a_source_that_is_wrong_fades() -> None:
    opinion, mixer = Opinion("lookup", [9], [1.0], 0.4, "3!", 2.0), Mixer()
    (guess,) = mixer.mix([opinion])
    for _ in range(30):
        mixer.observe([opinion], guess.token + 1)
    (faded,) = mixer.mix([opinion])
    assert faded.confidence < 0.25 * guess.confidence


def test_hits_of_a_kind_are_recalled_and_soon_overruled() -> None:
    opinion = Opinion("lookup", [9], [1.0], 0.6, "6")
    assert opinion.kind in KINDS
    taught, recalled = Mixer(), Mixer()
    for _ in range(200):
        taught.observe([opinion], 9)
    recalled.load_state_dict(taught.state_dict())
    assert 0.7 < recalled.mix([opinion])[0].confidence <= taught.mix([opinion])[0].confidence
    for _ in range(20):
        recalled.observe([opinion], 5)
    assert recalled.mix([opinion])[0].confidence < 0.4


# In the loop


def test_a_text_that_repeats_itself_needs_few_passes_without_any_draft() -> None:
    text = list(range(10)) * 3
    target = FakeModel(fixed_text(text, N_VOCAB, 4), N_VOCAB)
    with Engine(target, settings=EngineSettings(lookup=True, step_aside=False)) as engine:
        result = finish(engine.generate([1, 2, 3, 4], GREEDY, 120))
    assert result.tokens == tuple(text * 4)
    assert result.speculation.rounds < 40
    sources = {by.source: by for by in result.speculation.sources}
    assert set(sources) == {"lookup", "recycled"}
    assert sum(by.accepted for by in sources.values()) == result.speculation.accepted > 80
    assert sum(by.verified for by in sources.values()) == result.speculation.verified


# Recent texts


def source_with(**texts: Sequence[int]) -> LookupSource:
    """A source that has seen the whole texts of these clients."""
    source = LookupSource()
    for client, tokens in texts.items():
        source.begin(text_of([], client=client))
        source.end(text_of(tokens, client=client), tokens)
    return source


def after_others(source: LookupSource, client: str, text: Sequence[int]) -> list[int] | None:
    """The guess of a text of `client` that has just begun."""
    its_text = text_of(text[:-1], text[-1], client=client)
    source.rewind(0, 0)
    source.begin(its_text)
    source.read(its_text)
    return tokens_of(ask(source, line(0, text[-1:]), [0], its_text)[0])


@pytest.mark.parametrize(
    ("client", "text", "expected"),
    [
        ("anna", [9, 2, 3, 4], [5]),
        ("bert", [9, 2, 3, 4], None),
        ("anna", [2, 3, 4, 6, 2, 3, 4], [6]),
        ("anna", [9, 3, 4], None),
    ],
    ids=["her earlier text", "another client's", "the text itself first", "two tokens are too few"],
)
def test_recent_texts_of_the_client_are_looked_up(
    client: str, text: list[int], expected: list[int] | None
) -> None:
    assert after_others(source_with(anna=[1, 2, 3, 4, 5]), client, text) == expected


def test_recent_texts_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_module, "N_TOKENS", 8)
    source = source_with(anna=range(8))
    for begin in range(100, 200, 8):
        source.end(text_of([], client="anna"), range(begin, begin + 8))
    assert after_others(source, "anna", [1, 2, 3]) is None
    assert after_others(source, "anna", [197, 198, 199, 200]) == [201]
    assert BYTES <= 4 << 20


def test_an_engine_looks_up_its_last_answer_for_the_same_client_only() -> None:
    """The same prompt again: the second time, its answer is guessed; not for another client."""
    target = FakeModel(random_language(5, 200, order=3), 200, n_ctx=128)
    with Engine(target, None, EngineSettings(lookup=True, step_aside=False)) as engine:

        def n_passes(client: str) -> int:
            before = target.n_passes
            request = engine.admit(TextRequest(tuple(range(20)), GREEDY, 24, client=client))
            list(engine.ask(request))
            return target.n_passes - before

        first, again, other = n_passes("anna"), n_passes("anna"), n_passes("bert")
    assert again < 0.7 * first
    assert other > 1.2 * again
