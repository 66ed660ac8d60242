"""With a draft and without one: the same events, the same end or error, the same tokens in the KV.

Whatever can end a text is tried at once: stop strings, end-of-generation tokens, limits, grammars
and logits that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.engine.settings import EngineSettings
from edgespec.errors import GrammarError, ModelError
from edgespec.ports.text_request import TextRequest
from edgespec.rules.pacer import PACERS
from edgespec.rules.sampling import SamplingParams
from edgespec.rules.stop_rules import STOP_RULES
from edgespec.values import TokenEvent, TokenLogprobs
from engine_cases import GREEDY, N_VOCAB, PROMPT, WARM, assert_nothing_provisional, counting
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, Language, blend, random_language

EOG = N_VOCAB - 1


class ScriptedGrammar:
    """Allows a few tokens at each place of a text, often a single one, and may fail at one."""

    def __init__(self, seed: int, fails_at: int | None, while_taking: bool) -> None:
        self._seed, self._fails_at, self._while_taking = seed, fails_at, while_taking
        self._n_taken = 0

    def allowed(self, ahead: Sequence[int] = ()) -> np.ndarray:
        if not ahead:
            self._fail(not self._while_taking)
        mask = np.zeros(N_VOCAB, bool)
        mask[self._at(self._n_taken + len(ahead))] = True
        return mask

    def take(self, token: int) -> None:
        self._fail(self._while_taking)
        self._n_taken += 1

    def forced(self, most: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < most and len(only := self._at(self._n_taken + len(tokens))) == 1:
            tokens += only
        return tokens

    def _at(self, place: int) -> list[int]:
        random = np.random.default_rng([self._seed, place])
        n_tokens = int(random.choice([1, 1, 4, N_VOCAB]))
        chosen: list[int] = random.choice(N_VOCAB, n_tokens, replace=False).tolist()
        return chosen

    def _fail(self, is_here: bool) -> None:
        if is_here and self._n_taken == self._fails_at:
            raise GrammarError(f"no token is allowed after {self._n_taken}")


def nan_where(language: Language, is_damaged: Callable[[tuple[int, ...]], bool]) -> Language:
    broken = np.full(N_VOCAB, np.nan, np.float32)
    return lambda context: broken if is_damaged(context) else language(context)


@dataclass
class Observed:
    """Events of one text as a caller sees them, and what the target then has read and holds."""

    events: list[tuple[int, str, TokenLogprobs | None]]
    end: tuple[Any, ...]
    """The finish reason and the whole text, or the error's type and words."""
    committed: tuple[int, ...]
    prefilled: tuple[int, ...]


def observe(
    engine: Engine,
    target: FakeModel,
    prompt: Sequence[int] = PROMPT,
    *,
    sampling: SamplingParams = GREEDY,
    max_tokens: int | None = 20,
    stop: Sequence[str] = (),
    constraint: ScriptedGrammar | None = None,
    n_logprobs: int | None = None,
) -> Observed:
    request = engine.admit(
        TextRequest(tuple(prompt), sampling, max_tokens, stop, constraint, n_logprobs)
    )
    events: list[TokenEvent] = []
    try:
        events.extend(engine.ask(request))
    except (ModelError, GrammarError) as error:
        end: tuple[Any, ...] = (type(error), str(error))
    else:
        end = (request.result().finish_reason, request.result().text)
        assert request.result().tokens == tuple(event.token for event in events)
    assert tuple(engine.committed) == target.committed
    seen = [(event.token, event.text, event.logprobs) for event in events]
    return Observed(seen, end, target.committed, tuple(target.prefilled))


def paired(target: FakeModel, draft: FakeModel | None, **rules: Any) -> Engine:
    return Engine(target, draft, EngineSettings(step_aside=False, **(rules if draft else {})))


@pytest.mark.slow
@settings(max_examples=200)
@given(
    seed=st.integers(0, 10_000),
    disagreement=st.sampled_from([0.0, 0.3, 1.0]),
    rules=st.fixed_dictionaries(
        {
            "pacer": st.sampled_from(sorted(PACERS)),
            "fallback": st.sampled_from(["marginal", *STOP_RULES]),
            "draft_max": st.integers(1, 12),
            "no_overlap": st.booleans(),
        }
    ),
    sampling=st.sampled_from(
        [GREEDY, WARM, SamplingParams(temperature=1.5, repeat_penalty=1.3, seed=2)]
    ),
    stop=st.lists(st.text(alphabet="abcdef", min_size=1, max_size=3), max_size=3),
    max_tokens=st.sampled_from([None, 1, 7, 20]),
    grammar=st.none()
    | st.tuples(st.integers(0, 999), st.none() | st.integers(0, 12), st.booleans()),
    damage=st.none() | st.tuples(st.booleans(), st.integers(0, 12)),
    draft_is_damaged_after=st.none() | st.integers(0, N_VOCAB - 1),
    n_logprobs=st.sampled_from([None, 2]),
    is_hybrid=st.booleans(),
)
def test_a_draft_changes_neither_the_events_nor_the_end_nor_what_is_held(
    seed: int,
    disagreement: float,
    rules: dict[str, Any],
    sampling: SamplingParams,
    stop: list[str],
    max_tokens: int | None,
    grammar: tuple[int, int | None, bool] | None,
    damage: tuple[bool, int] | None,
    draft_is_damaged_after: int | None,
    n_logprobs: int | None,
    is_hybrid: bool,
) -> None:
    """In a first text, and in a second one that goes on from it."""
    language = random_language(seed, N_VOCAB)
    draft_language = blend(language, random_language(seed + 1, N_VOCAB), disagreement)
    if draft_is_damaged_after is not None:
        draft_language = nan_where(draft_language, lambda c: c[-1] == draft_is_damaged_after)
    if damage is not None:
        by_place, which = damage
        language = nan_where(
            language, lambda c: len(c) == len(PROMPT) + which if by_place else c[-1] == which
        )

    def seen(draft: FakeModel | None) -> list[Observed]:
        target = FakeModel(
            language,
            N_VOCAB,
            n_ctx=40,
            eog_tokens=[EOG],
            stall_share=0.9,
            tree_capable=not is_hybrid,
            max_rollback=3,
            max_nodes=7 if is_hybrid else 13,
            max_branches=3 if is_hybrid else 8,
        )

        def text(prompt: Sequence[int]) -> Observed:
            return observe(
                engine,
                target,
                prompt,
                sampling=sampling,
                max_tokens=max_tokens,
                stop=stop,
                constraint=ScriptedGrammar(*grammar) if grammar else None,
                n_logprobs=n_logprobs,
            )

        with paired(target, draft, **rules) as engine:
            first = text(PROMPT)
            second = text([*PROMPT, *(token for token, _, _ in first.events), 5][:40])
        assert_nothing_provisional(target, *([draft] if draft else []))
        return [first, second]

    assert seen(FakeModel(draft_language, N_VOCAB)) == seen(None)


LINE = {"n_candidates": 1, "fallback": "fixed", "draft_max": 8, "lookup": False}


class Permissive(ScriptedGrammar):
    """Allows everything, up to one place."""

    def __init__(self, fails_at: int) -> None:
        super().__init__(0, fails_at, while_taking=False)

    def _at(self, place: int) -> list[int]:
        return list(range(N_VOCAB))


@pytest.mark.parametrize("with_draft", [False, True])
def test_tokens_before_an_error_are_yielded(with_draft: bool) -> None:
    target = counting()
    with paired(target, counting() if with_draft else None, **LINE) as engine:
        seen = observe(engine, target, constraint=Permissive(fails_at=7))
    assert seen.end == (GrammarError, "no token is allowed after 7")
    assert [token for token, _, _ in seen.events] == list(range(7))
    assert seen.committed == (*PROMPT, *range(6))


def test_a_hybrid_goes_on_after_a_stop_string_without_reading_its_text_again() -> None:
    target = counting(tree_capable=False, max_rollback=8, max_nodes=9, max_branches=1)
    with paired(target, counting(), **LINE) as engine:
        first = observe(engine, target, stop=["ef"])
        target.prefilled.clear()
        again = [*PROMPT, *(token for token, _, _ in first.events), 6]
        assert observe(engine, target, again, max_tokens=3).prefilled == (1,)
