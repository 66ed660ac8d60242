"""Costs that guesses may have where computing decides, with passes of known costs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from statistics import mean
from typing import Any

import pytest

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


READS_S = pytest.mark.parametrize(
    "read_s",
    [0.3, *(pytest.param(read_s, marks=pytest.mark.slow) for read_s in (1.2, 2.0))],
    ids=lambda s: f"reads take {s} s",
)


@pytest.mark.slow
@READS_S
def test_free_guesses_do_not_slow_a_text_down(read_s: float) -> None:
    rules = {"step_aside": False}
    drafted_s = WaitingMachine(read_s, 0.1, 0.08).seconds_per_token(200, lookup=False, **rules)
    assert (
        WaitingMachine(read_s, 0.1, 0.08).seconds_per_token(200, lookup=True, **rules) < drafted_s
    )


@pytest.mark.slow
@READS_S
def test_trees_do_not_outgrow_the_reads_that_hide_them(read_s: float) -> None:
    """A pass that waited a little though it computed all the time once made all nodes up to its
    own size seem free, the next one larger, and so on. Guesses that know the noise of a draw are
    sure enough for a few nodes beyond those that reads hide, now and then."""
    machine = WaitingMachine(read_s, 0.1, 0.08)
    machine.seconds_per_token(200, step_aside=False)
    n_hidden = (read_s - 0.1) / 0.08
    assert mean(machine.sizes[1:]) < n_hidden + 1
    assert max(machine.sizes[1:]) < n_hidden + 7


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
