"""Shared by tests of the engine: a language that counts, and ways to run a generation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edgespec.engine.engine import Engine
from edgespec.engine.generation import Generation
from edgespec.engine.settings import EngineSettings
from edgespec.engine.text import Text
from edgespec.ports import LanguageModel, Progress
from edgespec.ports.text_request import TextRequest
from edgespec.rules.acceptance_rules import ACCEPTANCE_RULES
from edgespec.rules.sampling import SamplingParams
from edgespec.values import GenerationResult, TokenEvent
from fake_model import FakeModel, fixed_text

N_VOCAB = 12
PROMPT = [1, 2, 3, 4]
GREEDY = SamplingParams()
WARM = SamplingParams(temperature=0.8, seed=4)
COUNTING = fixed_text(list(range(10)), N_VOCAB, len(PROMPT))
"""0 1 2 ... 9 0 1 ..., nearly for sure."""


class AskedEngine(Engine):
    """An engine without a session."""

    def ask(self, text: Text) -> Generation:
        """The tokens of a request."""
        return Generation(self, text)

    def generate(
        self,
        prompt_tokens: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Generation:
        """Admit and `ask` for a text."""
        terms = TextRequest(tuple(prompt_tokens), sampling, max_tokens, stop, progress=progress)
        return self.ask(self.admit(terms))

    @property
    def committed(self) -> Sequence[int]:
        """Committed tokens of slot 0."""
        return tuple(self.slots[0].committed)


def finish(events: Iterator[TokenEvent]) -> GenerationResult:
    return follow(events)[1]


def follow(events: Iterator[TokenEvent]) -> tuple[list[TokenEvent], GenerationResult]:
    seen = []
    while True:
        try:
            seen.append(next(events))
        except StopIteration as end:
            return seen, end.value


def generate(
    target: LanguageModel,
    draft: LanguageModel | None = None,
    *,
    prompt: Sequence[int] = PROMPT,
    sampling: SamplingParams = GREEDY,
    max_tokens: int | None = 20,
    stop: Sequence[str] = (),
    acceptance: str = "exact-replay",
    **engine_settings: Any,
) -> GenerationResult:
    settings, rule = (
        EngineSettings(step_aside=False, **engine_settings),
        ACCEPTANCE_RULES[acceptance],
    )
    with AskedEngine(target, draft, settings, acceptance=rule) as engine:
        return finish(engine.generate(prompt, sampling, max_tokens, stop))


def counting(**options: Any) -> FakeModel:
    return FakeModel(COUNTING, N_VOCAB, **options)


def forget(engine: Engine) -> None:
    """Drop all committed text from the engine's models."""
    for slot in engine.slots:
        slot.rewind(0)


def in_turn(going: Sequence[Iterator[TokenEvent]]) -> None:
    """Take one token of each text in turn, to the ends of all: none begins late or stays behind."""
    while going:
        going = [events for events in going if next(events, None) is not None]


def assert_nothing_provisional(*models: FakeModel) -> None:
    assert [model.n_provisional for model in models] == [0] * len(models)


class Failing:
    """A hook that raises on its n-th call."""

    def __init__(self, n: int, error: BaseException) -> None:
        self.calls_left, self.error = n, error

    def __call__(self, model: FakeModel) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise self.error


def waits_for_steps_of(draft: FakeModel, n: int) -> Callable[[FakeModel], None]:
    """A pass that lasts until the draft has made `n` steps beside it, or makes no more."""

    def hook(target: FakeModel) -> None:
        if not target.prefilled:
            return
        before, idle = len(draft.evaluations), itertools.count()
        target.wait_until(lambda: len(draft.evaluations) >= before + n or next(idle) > 400)

    return hook
