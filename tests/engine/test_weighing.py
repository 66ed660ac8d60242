"""Costs that guesses may have where computing decides, with passes of known costs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

from edgespec.engine.settings import EngineSettings
from edgespec.values import PagingStats, PassReport
from engine_cases import N_VOCAB, PROMPT, WARM, finish, generate
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, blend, random_language

LANGUAGE = random_language(5, N_VOCAB, sharpness=2.0)
DRAFT = blend(LANGUAGE, random_language(6, N_VOCAB), 0.35)
STEP_S = 0.005


class Paged(FakeModel):
    def paging(self) -> PagingStats:
        return PagingStats(segments=1)


class WaitingMachine:
    """A target whose passes take their reads or, if longer, their computing; some wait a little
    for storage though computing decides. And a draft."""

    def __init__(self, read_s: float, base_s: float, node_s: float) -> None:
        self.now = 0.0
        self.sizes: list[int] = []
        self._read_s, self._base_s, self._node_s = read_s, base_s, node_s
        self._hitches: Iterator[float] = cycle([0.0, 0.02, 0.08, 0.0, 0.06])

    def clock(self) -> float:
        return self.now

    def target_pass(self, n_tokens: int) -> PassReport:
        compute_s = self._base_s + self._node_s * n_tokens
        wall_s = (1.0 + next(self._hitches)) * max(self._read_s, compute_s)
        self.now += wall_s
        self.sizes.append(n_tokens)
        return PassReport(wall_s, wall_s - compute_s, n_tokens=n_tokens, read_s=self._read_s)

    def draft_step(self, n_tokens: int) -> PassReport:
        self.now += STEP_S
        return PassReport(STEP_S, n_tokens=n_tokens)

    def seconds_per_token(self, n_tokens: int, **rules: Any) -> float:
        target = Paged(LANGUAGE, N_VOCAB, cost=self.target_pass, n_ctx=4096)
        draft = FakeModel(DRAFT, N_VOCAB, cost=self.draft_step, n_ctx=4096)
        settings = EngineSettings(no_overlap=True, **rules)
        with Engine(target, draft, settings, self.clock) as engine:
            result = finish(engine.generate(PROMPT * 8, WARM, n_tokens))
        return result.timings.decode_s / n_tokens


def test_the_prompt_shows_what_nodes_of_the_first_tree_cost() -> None:
    machine = WaitingMachine(0.3, 0.1, 0.08)
    machine.seconds_per_token(20, step_aside=False)
    _prompt, first, *_ = machine.sizes
    assert first < 8


def test_trees_past_64_nodes_change_no_token() -> None:
    rules = {"draft_max": 128, "fallback": "full", "n_candidates": 12}
    large = FakeModel(LANGUAGE, N_VOCAB, max_nodes=129, max_branches=128)
    draft = FakeModel(DRAFT, N_VOCAB, max_branches=128)
    drafted = generate(large, draft, sampling=WARM, **rules)
    alone = generate(FakeModel(LANGUAGE, N_VOCAB), sampling=WARM)
    assert drafted.tokens == alone.tokens
    assert max(large.evaluations) > 64
