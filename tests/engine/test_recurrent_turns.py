"""Turns of a model that cannot drop tokens: it goes on from where an earlier prompt ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.engine.text import N_LEFT
from edgespec.errors import UsageError
from engine_cases import GREEDY, N_VOCAB, Failing, finish
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, random_language

LANGUAGE = random_language(5, N_VOCAB)
OPENING = [9, 8, 7]
"""Ends each prompt; of the last two tokens the next prompt knows nothing."""


def recurrent() -> FakeModel:
    model = FakeModel(LANGUAGE, N_VOCAB, tree_capable=False, max_nodes=1, max_branches=1)
    model.info = replace(model.info, prompts_share_passes=True)
    return model


def question(turn: int) -> list[int]:
    return [(turn + n) % N_VOCAB for n in range(12)]


def ask(engine: Engine, prompt: Sequence[int]) -> list[int]:
    return list(finish(engine.generate(prompt, GREEDY, 6)).tokens)


def test_twenty_turns_that_leave_out_what_was_thought_read_only_what_is_new() -> None:
    target, history, n_read = recurrent(), list[int](), []
    with Engine(target, None, EngineSettings()) as engine:
        for turn in range(20):
            target.prefilled.clear()
            prompt = [*history, *question(turn), *OPENING]
            answer = ask(engine, prompt)
            n_read.append(sum(target.prefilled))
            history = [*prompt[:-2], *answer[3:]]
    n_new = len(question(0)) + len(OPENING) + 3
    assert max(n_read) <= n_new + N_LEFT


@pytest.mark.parametrize("n_dropped", [0, 2])
def test_the_text_is_that_of_a_model_that_reads_all(n_dropped: int) -> None:
    first = [*question(1), *OPENING]
    with Engine(recurrent(), None, EngineSettings()) as engine:
        answer = ask(engine, first)
        second = [*first[: len(first) - n_dropped], *answer[n_dropped:], *question(2)]
        again = ask(engine, second)
    with Engine(recurrent(), None, EngineSettings()) as engine:
        assert again == ask(engine, second)


@pytest.mark.parametrize("fails", [False, True], ids=["at once", "after a failed pass"])
def test_an_answer_is_written_again_without_reading_the_prompt_again(fails: bool) -> None:
    target, prompt = recurrent(), [*question(1), *OPENING]
    with Engine(target, None, EngineSettings()) as engine:
        answer = ask(engine, prompt)
        if fails:
            target.hook = Failing(3, UsageError("failed"))
            with pytest.raises(UsageError):
                ask(engine, prompt)
        target.prefilled.clear()
        assert ask(engine, prompt) == answer
    assert target.prefilled == [N_LEFT]
