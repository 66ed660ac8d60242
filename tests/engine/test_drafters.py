"""Several drafters in one tree: the seam, held by a small second implementation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.lookup import LookupDrafter, weighed
from edgespec.engine.drafting.model_drafter import ModelDrafter
from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.rules.pacer import Pacer
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.rules.tree_limits import Limits
from edgespec.tree import ROOT, TokenTree
from engine_cases import GREEDY, N_VOCAB, PROMPT, WARM, counting, finish, generate
from fake_model import FakeModel, blend, random_language

WIDE = Limits(max_nodes=16, max_branches=8, max_depth=8)


class Counter:
    """Implements `Drafter`: sure that the next token is the last one and `stride`."""

    is_free = True

    def __init__(self, stride: int = 1, source: str = "counter") -> None:
        self.source = source
        self.calls: list[str] = []
        self._stride = stride
        self._opinions: dict[int, Opinion] = {}
        self._n_read = 0

    def open_nodes(self, tree: TokenTree) -> list[int]:
        return [node for node in range(len(tree)) if int(tree.key[node]) not in self._opinions]

    def step(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        for node in nodes:
            token = (int(tree.token[node]) + self._stride) % 10
            self._opinions[int(tree.key[node])] = Opinion(self.source, [token], [1.0], 0.9)
        return list(nodes)

    def opinion(self, key: int) -> Opinion | None:
        return self._opinions.get(key)

    def observe_logits(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        pass

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        self._n_read += len(path)
        self._opinions.clear()

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        return "it counts below ten" if root_token > 9 else None

    def catch_up(self, committed: Sequence[int]) -> bool:
        before, self._n_read = self._n_read, len(committed)
        return before < self._n_read

    def begin_text(self, sampler: Sampler) -> None: ...

    def rest(self) -> None:
        self._opinions.clear()

    def rewind(self, n_tokens: int) -> None:
        self._opinions.clear()
        self._n_read = min(n_tokens, self._n_read)

    def cancel(self) -> None:
        self.calls.append("cancel")


def model_drafter(model: FakeModel) -> ModelDrafter:
    return ModelDrafter(model, 8, N_VOCAB, frozenset())


def test_a_drafter_without_a_model_saves_passes() -> None:
    with Engine(counting(), drafters=[Counter()]) as engine:
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
        drafters=[Counter(stride)],
    ) as engine:
        assert finish(engine.generate(PROMPT, WARM, 60)).tokens == alone.tokens
        assert draft.n_provisional == 0


@pytest.mark.slow
def test_two_models_grow_one_tree() -> None:
    language = random_language(2, N_VOCAB)
    drafts = [
        FakeModel(blend(language, random_language(seed, N_VOCAB), 0.3), N_VOCAB) for seed in (3, 4)
    ]
    second = model_drafter(drafts[1])
    second.source = "second"
    settings = EngineSettings(step_aside=False)
    with Engine(FakeModel(language, N_VOCAB), drafts[0], settings, drafters=[second]) as engine:
        result = finish(engine.generate(PROMPT, WARM, 60))
    alone = generate(FakeModel(language, N_VOCAB), sampling=WARM, max_tokens=60)
    assert result.tokens == alone.tokens
    assert all(draft.evaluations for draft in drafts)


def test_a_node_knows_who_guessed_it_and_what_the_drafter_gave_it() -> None:
    grower = TreeGrower([model_drafter(counting()), Counter(2)], Pacer())
    tree = TokenTree(3, 64)
    grower.begin(tree, WIDE)
    grower.step(tree, grower.open_nodes(tree), WIDE)
    own = tree.child(ROOT, 7)
    assert own is not None
    assert tree.source[own] == "draft"
    logits = np.zeros(N_VOCAB)
    logits[7] = 10.0
    assert tree.probability[own] == pytest.approx(float(np.exp(10) / np.exp(logits).sum()))
    other = tree.child(ROOT, 5)
    assert other is not None and tree.source[other] == "counter"


def test_what_costs_nothing_hangs_before_a_model_is_asked() -> None:
    draft = counting()
    grower = TreeGrower([model_drafter(draft), Counter()], Pacer())
    tree = TokenTree(3, 64)
    grower.begin(tree, WIDE)
    assert tree.depth[: len(tree)].max() == WIDE.max_depth
    assert draft.evaluations == []


def test_a_model_corrects_what_another_drafter_was_sure_of() -> None:
    grower = TreeGrower([model_drafter(counting()), Counter(2)], Pacer())
    tree = TokenTree(3, 64)
    grower.begin(tree, WIDE)
    wrong = tree.child(ROOT, 5)
    assert wrong is not None and tree.confidence[wrong] > 0.8
    grower.step(tree, grower.open_nodes(tree), WIDE)
    assert tree.confidence[wrong] < 0.5


def test_a_drafter_that_cannot_follow_rests_and_the_others_go_on() -> None:
    target = FakeModel(random_language(1, N_VOCAB), N_VOCAB)
    with Engine(target, drafters=[Counter()], settings=EngineSettings(step_aside=False)) as engine:
        result = finish(engine.generate([11, 11, 11, 11], GREEDY, 5))
    (note,) = result.notes
    assert "the counter could not follow after 3 tokens (it counts below ten)" in note


def test_cancelling_reaches_every_drafter() -> None:
    counter = Counter()
    with Engine(counting(), counting(), drafters=[counter]) as engine:
        engine.cancel()
    assert counter.calls == ["cancel"]


def test_a_model_s_damaged_logits_teach_nothing() -> None:
    drafter = model_drafter(FakeModel(lambda _: np.full(N_VOCAB, np.nan, np.float32), N_VOCAB))
    drafter.catch_up(PROMPT)
    tree = TokenTree(3)
    drafter.step(tree, [ROOT])
    assert drafter.opinion(int(tree.key[ROOT])) is None
    drafter.follow(tree, [ROOT], tree.add(ROOT, 5, 1.0))
    assert "best logit is nan" in str(drafter.obstacle([*PROMPT, 3], 5))


def test_accepted_tokens_are_read_with_the_next_root_and_only_if_it_is_guessed_at() -> None:
    """They were read at the end of each round: a step in vain if the next one had no guesses."""
    model = counting()
    drafter = model_drafter(model)
    drafter.catch_up(PROMPT)
    tree = TokenTree(3)
    child = tree.add(ROOT, 4, 1.0)
    drafter.step(tree, [ROOT])
    n_before = model.n_passes
    drafter.follow(tree, [ROOT, child], root := tree.add(child, 5, 1.0))
    tree = tree.reroot(root)
    assert not drafter.catch_up([*PROMPT, 3, 4])
    assert model.n_passes == n_before
    assert drafter.step(tree, [ROOT]) == [ROOT]
    assert model.n_passes == n_before + 1
    assert model.committed == (*PROMPT, 3, 4)
    other, key = model_drafter(counting()), int(tree.key[ROOT])
    other.catch_up([*PROMPT, 3, 4])
    other.step(tree, [ROOT])
    assert drafter.opinion(key) == other.opinion(key)
    assert drafter.step(tree, [node := tree.add(ROOT, 6, 1.0)]) == [node]


def test_a_free_drafter_is_tried_on_the_last_tokens_and_reads_them() -> None:
    grower = TreeGrower([model_drafter(counting()), lookup := LookupDrafter()], Pacer())
    text = [1, 2, 3, 4, 1, 2]
    assert grower.dry_run(text, 1) == []
    assert grower.dry_run([*text, 3], 1) == [True]
    assert grower.dry_run([*text, 3, 4, 5], 2) == [True, False]
    assert not lookup.catch_up([*text, 3, 4, 5])


def test_a_dry_run_knows_the_noise_of_the_draws_that_were_made() -> None:
    """It took the noise of each next draw, so that it was as wrong as chance about drawn texts."""
    text, token = [1, 2, 5, 1, 2, 6, 1, 2], 5
    [(_, plain), *_] = LookupDrafter().dry_run([*text, token, 3], 2)
    sampler = Sampler(SamplingParams(temperature=1.0, seed=3))
    for drawn in (token, 3, 0):  # the last one is the root
        sampler.accept(drawn, np.zeros(8, np.float32))
    lookup = LookupDrafter()
    lookup.begin_text(sampler)
    [(seen, opinion), *_] = lookup.dry_run([*text, token, 3], 2)
    assert seen == token and len(plain.tokens) == 2
    assert opinion == weighed(plain, sampler.luck(plain.tokens, -3))
    assert opinion != weighed(plain, sampler.luck(plain.tokens, -2))


def test_a_draft_reads_nothing_while_only_free_drafters_guess() -> None:
    grower = TreeGrower([model_drafter(draft := counting()), lookup := LookupDrafter()], Pacer())
    text = [1, 2, 3, 4, 1]
    grower.prepare(text, 2, free_only=True)
    grower.catch_up(text)
    tree = TokenTree(2)
    grower.begin(tree, WIDE)
    assert len(tree) > 1 and not grower.open_nodes(tree)
    assert draft.committed_of(0) == 0 and not lookup.catch_up(text)
    grower.prepare(text, 2)
    assert grower.catch_up(text) and draft.committed_of(0) == len(text)
