"""Guesses from the text itself."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.engine.drafting import text_index
from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.lookup import KINDS, LookupDrafter, kind_of
from edgespec.engine.drafting.mixer import Mixer
from edgespec.engine.drafting.text_index import BYTES, MAX_MATCH, N_CLIENTS, History, TextIndex
from edgespec.engine.engine import Engine
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.settings import EngineSettings
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from edgespec.rules.tree_limits import Limits
from edgespec.tree import ROOT, TokenTree
from engine_cases import GREEDY, N_VOCAB, WARM, assert_nothing_provisional, finish
from fake_model import FakeModel, fixed_text, random_language

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def index_of(tokens: Sequence[int]) -> TextIndex:
    index = TextIndex()
    for token in tokens:
        index.append(token)
    return index


def after(text: Sequence[int], *tail: int) -> tuple[LookupDrafter, TokenTree]:
    """A drafter that has read `text`, and a tree of the line `tail` below it."""
    drafter = LookupDrafter()
    drafter.catch_up(text)
    tree = TokenTree(tail[0], 16)
    for parent, token in enumerate(tail[1:]):
        tree.add(parent, token, 0.9)
    drafter.step(tree, range(len(tree)))
    return drafter, tree


def guessed(drafter: LookupDrafter, tree: TokenTree, node: int) -> list[int] | None:
    opinion = drafter.opinion(int(tree.key[node]))
    return None if opinion is None else list(opinion.tokens)


# The index


@given(TEXTS, st.lists(st.integers(0, 3), max_size=6))
def test_places_are_where_the_text_ended_like_the_words(text: list[int], words: list[int]) -> None:
    for place, alike in index_of(text).places(words):
        assert 2 <= alike <= len(words)
        assert text[place + 1 - alike : place + 1] == words[len(words) - alike :]
        assert place + 1 < len(text)
        is_longest = alike == len(words) or alike > place
        assert is_longest or text[place - alike] != words[-alike - 1]


@given(TEXTS, st.lists(st.integers(0, 3), min_size=2, max_size=2))
def test_every_place_is_found_the_last_ones_first(text: list[int], words: list[int]) -> None:
    expected = [n for n in range(1, len(text) - 1) if text[n - 1 : n + 1] == words][::-1]
    found = [place for place, _ in index_of(text).places(words)]
    # Other pairs may share a hash and take a few of the places that a search looks at.
    assert found == expected[: len(found)]
    assert len(found) >= min(len(expected), TextIndex.max_places // 2)


@given(TEXTS, st.integers(0, 60), TEXTS)
def test_a_text_cut_short_and_gone_on_is_the_text_that_it_is(
    text: list[int], n_kept: int, rest: list[int]
) -> None:
    index = index_of(text)
    index.truncate(min(n_kept, len(text)))
    for token in rest:
        index.append(token)
    whole = text[:n_kept] + rest
    assert index.tokens.tolist() == whole
    for a in range(4):
        for b in range(4):
            assert index.places([a, b]) == index_of(whole).places([a, b])


# The drafter


def test_what_followed_the_same_words_is_guessed() -> None:
    drafter, tree = after([1, 2, 3, 9, 1, 2], 3)
    assert guessed(drafter, tree, ROOT) == [9]


def test_a_branch_is_looked_up_from_its_own_end() -> None:
    drafter, tree = after([1, 2, 3, 4, 5, 6, 0, 1], 2, 3, 4)
    assert [guessed(drafter, tree, node) for node in range(3)] == [[3], [4], [5]]


def test_the_end_of_a_long_branch_is_looked_up_although_nothing_above_it_was() -> None:
    drafter = LookupDrafter()
    drafter.catch_up([5, 1, 2, 9, 5, 1])
    tree = TokenTree(3, 3000)
    for parent, token in enumerate([4] * 2000 + [5, 1, 2]):
        tree.add(parent, token, 0.5)
    drafter.step(tree, [len(tree) - 1])
    assert guessed(drafter, tree, len(tree) - 1) == [9]


def test_several_continuations_come_the_most_frequent_first() -> None:
    drafter, tree = after([1, 2, 7, 1, 2, 8, 1, 2, 8, 1], 2)
    assert guessed(drafter, tree, ROOT) == [8, 7]


def test_of_equals_the_last_one_comes_first() -> None:
    drafter, tree = after([1, 2, 7, 1, 2, 8, 1], 2)
    assert guessed(drafter, tree, ROOT) == [8, 7]


def test_more_in_common_counts_more_than_frequency() -> None:
    drafter, tree = after([5, 6, 1, 2, 7, 0, 1, 2, 8, 0, 1, 2, 8, 5, 6, 1], 2)
    assert guessed(drafter, tree, ROOT) == [7, 8]


def test_words_that_are_new_give_no_guess() -> None:
    drafter, tree = after([1, 2, 3], 9)
    assert guessed(drafter, tree, ROOT) is None


def test_nothing_is_guessed_after_the_end_of_a_text() -> None:
    drafter = LookupDrafter(frozenset([3]))
    tree = TokenTree(2, 8)
    end = tree.add(ROOT, 3, 0.9)
    assert end not in drafter.open_nodes(tree)


def test_a_source_that_is_wrong_fades() -> None:
    drafter, tree = after([1, 2, 3, 9, 1, 2], 3)
    opinion, mixer = drafter.opinion(int(tree.key[ROOT])), Mixer()
    assert opinion is not None
    (guess,) = mixer.mix([opinion])
    for _ in range(30):
        mixer.observe([opinion], guess.token + 1)
    (faded,) = mixer.mix([opinion])
    assert faded.confidence < 0.25 * guess.confidence


def test_a_place_is_of_some_kind_however_much_is_the_same() -> None:
    lengths = range(2, MAX_MATCH + 1)
    yes_or_no = (True, False)
    assert set(KINDS) == {
        kind_of(alike, is_sole, is_others)
        for alike in lengths
        for is_sole in yes_or_no
        for is_others in yes_or_no
    }


def test_hits_of_a_kind_are_recalled_and_soon_overruled() -> None:
    opinion = Opinion("lookup", [9], [1.0], 0.6, kind_of(5, is_sole=False))
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


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(5))
def test_lookup_changes_no_token(seed: int, sampling: SamplingParams) -> None:
    language = random_language(seed, 6, order=2)
    target = FakeModel(language, 6, eog_tokens=[5], n_ctx=80)
    prompt = [random.Random(seed).randrange(5) for _ in range(30)]
    texts = []
    for lookup in (False, True):
        settings = EngineSettings(lookup=lookup, step_aside=False)
        with Engine(target, settings=settings) as engine:
            texts.append(finish(engine.generate(prompt, sampling, 50)).tokens)
        assert_nothing_provisional(target)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("n_new", [30, 10])
def test_a_text_is_looked_up_alone_only_where_that_is_sure_of_the_next_token(
    n_new: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that looked up and found nothing took 2.0 ms besides its pass, one without guesses
    0.8."""
    monkeypatch.setattr(RoundPlanner, "choose", lambda self: 0.0)
    monkeypatch.setattr(RoundPlanner, "choose_free", lambda self: 1.0)
    looked_up: list[bool] = []
    begin = TreeGrower.begin

    def spied(grower: TreeGrower, tree: TokenTree, limits: Limits) -> None:
        begin(grower, tree, limits)
        looked_up.append(len(tree) > 1)

    monkeypatch.setattr(TreeGrower, "begin", spied)
    text = list(range(n_new))
    target = FakeModel(fixed_text(text, 40, 4), 40)
    with Engine(target, settings=EngineSettings(lookup=True)) as engine:
        result = finish(engine.generate([31, 32, 33, 34], GREEDY, 30))
    assert result.tokens == tuple((text * 3)[:30])
    assert len(looked_up) < result.speculation.rounds and all(looked_up)
    assert bool(looked_up) == (n_new == 10)


def test_a_target_that_cannot_drop_tokens_is_left_alone() -> None:
    target = FakeModel(random_language(1, N_VOCAB), N_VOCAB, tree_capable=False)
    with Engine(target, settings=EngineSettings(lookup=True)) as engine:
        result = finish(engine.generate([1, 2, 1, 2], GREEDY, 10))
    assert result.speculation.drafted == 0


# Recent texts


def after_others(history: History, client: str, text: Sequence[int]) -> list[int] | None:
    """The guess of a text of `client` that has just begun."""
    drafter = LookupDrafter(history=history)
    drafter.begin_client(client)
    drafter.catch_up(text[:-1])
    tree = TokenTree(text[-1], 16)
    drafter.step(tree, [ROOT])
    return guessed(drafter, tree, ROOT)


def test_a_clients_earlier_text_is_looked_up() -> None:
    history = History()
    history.of("anna").add([1, 2, 3, 4, 5])
    assert after_others(history, "anna", [9, 2, 3, 4]) == [5]


def test_another_clients_text_is_not() -> None:
    history = History()
    history.of("anna").add([1, 2, 3, 4, 5])
    assert after_others(history, "bert", [9, 2, 3, 4]) is None


def test_the_text_itself_comes_first_where_it_matches_as_long() -> None:
    history = History()
    history.of("").add([1, 2, 3, 4, 5])
    assert after_others(history, "", [2, 3, 4, 6, 2, 3, 4]) == [6]


def test_two_matching_tokens_of_another_text_are_too_few() -> None:
    history = History()
    history.of("").add([1, 2, 3, 4, 5])
    assert after_others(history, "", [9, 3, 4]) is None


def test_recent_texts_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "N_TOKENS", 8)
    recent = text_index.RecentTexts()
    recent.add(range(8))
    for begin in range(100, 200, 8):
        recent.add(range(begin, begin + 8))
    assert recent.after([1, 2, 3]) == []
    assert recent.after([197, 198, 199, 200]) == [(201, 4)]
    assert BYTES <= 4 << 20


def test_the_client_that_asked_longest_ago_is_forgotten() -> None:
    kept = History()
    for client in range(N_CLIENTS):
        kept.of(str(client)).add([1, 2, 3, 4])
    kept.of("0")
    kept.of("another")
    assert kept.of("0").after([1, 2, 3]) == [(4, 3)]
    assert kept.of("1").after([1, 2, 3]) == []


def test_an_engine_looks_up_its_last_answer_for_the_same_client_only() -> None:
    """The same prompt again: the second time, its answer is guessed; not for another client."""
    target = FakeModel(random_language(5, 200, order=3), 200, n_ctx=128)
    with Engine(target, None, EngineSettings(lookup=True, step_aside=False)) as engine:

        def n_passes(client: str) -> int:
            before = target.n_passes
            request = engine.admit(TextRequest(tuple(range(20)), GREEDY, 24, client=client))
            list(engine.run(request))
            return target.n_passes - before

        first, again, other = n_passes("anna"), n_passes("anna"), n_passes("bert")
    assert again < 0.7 * first
    assert other > 1.2 * again
