"""Several texts in one pass: each is the text that it is alone, whatever the others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import sleep
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.engine.generation import Generation
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.settings import EngineSettings
from edgespec.errors import ModelError
from edgespec.ports import PassPart
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from edgespec.rules.stop_rules import Nodes, StopRule
from edgespec.values import PassReport
from engine_cases import GREEDY, assert_nothing_provisional, finish, in_turn
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, blend, random_language

N_VOCAB = 24
LANGUAGE = random_language(1, N_VOCAB)
N_TEXTS = 3


def new_target(n_texts: int = N_TEXTS, **options: Any) -> FakeModel:
    return FakeModel(LANGUAGE, N_VOCAB, n_texts=n_texts, n_ctx=256, **options)


def new_draft(n_texts: int = N_TEXTS) -> FakeModel:
    language = blend(LANGUAGE, random_language(2, N_VOCAB), 0.4)
    return FakeModel(language, N_VOCAB, n_texts=n_texts, n_ctx=256)


def alone(prompt: Sequence[int], sampling: SamplingParams, n_tokens: int) -> tuple[int, ...]:
    with Engine(new_target(1)) as engine:
        return written(engine, prompt, sampling, n_tokens)


def written(
    engine: Engine, prompt: Sequence[int], sampling: SamplingParams, n_tokens: int
) -> tuple[int, ...]:
    return finish(engine.ask(engine.admit(TextRequest(tuple(prompt), sampling, n_tokens)))).tokens


def together(engine: Engine, *texts: Callable[[], Any]) -> list[Any]:
    """Results of calls that run at a time, and in every pass together as long as they last."""
    with ThreadPoolExecutor(len(texts)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(text) for text in texts]]


@pytest.mark.parametrize("is_line", [False, True], ids=["trees", "lines"])
def test_the_planner_learns_what_rows_a_pass_of_several_texts_had(is_line: bool) -> None:
    """Rows of other texts were counted twice where branches are computed as lines."""
    kind = {"tree_capable": False, "max_rollback": 4} if is_line else {}
    target, rows, told = new_target(**kind), [], []
    target._report = lambda n: rows.append(n) or PassReport(1.0, n_tokens=n)  # type: ignore
    with Engine(target, new_draft(), EngineSettings(step_aside=False)) as engine:
        see = engine.ledger.see

        def spied(outcome: RoundOutcome) -> None:
            told.append((outcome.n_texts, outcome.n_rows, rows[-1]))
            see(outcome)

        engine.ledger.see = spied  # type: ignore[method-assign]
        prompts = ([1, 2, 3], [4, 5, 6, 7])
        texts = [lambda p=prompt: written(engine, p, SamplingParams(), 12) for prompt in prompts]
        together(engine, *texts)
    assert any(n_texts > 1 for n_texts, _, _ in told)
    assert all(counted == computed for _, counted, computed in told), told


class Listening(StopRule):
    """Stops after eight nodes, and counts what it is told."""

    name = "listening"

    def __init__(self) -> None:
        self.n_told = 0

    def fires(self, pool: object, nodes: Nodes, *ends: object) -> bool:
        return len(nodes) > 8

    def observe(self, *told: object) -> Listening:
        self.n_told += 1
        return self


def test_a_stop_rule_learns_from_each_text_of_a_pass() -> None:
    """It was told of the first text's best branch alone, and of one path made of all."""
    rule = Listening()
    with Engine(new_target(), new_draft(), EngineSettings(step_aside=False)) as engine:
        engine.ledger.stop_rule = rule
        terms = [TextRequest((n, n + 1), max_tokens=12) for n in range(2)]
        requests = [engine.admit(each) for each in terms]
        together(engine, *[lambda r=request: [*engine.ask(r)] for request in requests])
        n_rounds = sum(len(request.tally.rounds) for request in requests)
    assert rule.n_told == n_rounds


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_text_among_others_is_the_text_alone(data: st.DataObject) -> None:
    """Random prompts, lengths, seeds and drafts; more texts than places come one after another."""
    texts = [
        (
            data.draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=30)),
            SamplingParams(temperature=data.draw(st.sampled_from([0.0, 0.8])), seed=seed),
            data.draw(st.integers(1, 24)),
        )
        for seed in range(data.draw(st.integers(2, N_TEXTS)))
    ]
    draft = new_draft() if data.draw(st.booleans()) else None
    target = new_target(max_nodes=data.draw(st.sampled_from([4, 16, 64])))
    rules = EngineSettings(step_aside=data.draw(st.booleans()))
    with Engine(target, draft, rules) as engine:
        found = together(engine, *[lambda text=text: written(engine, *text) for text in texts])
    assert found == [alone(*text) for text in texts]
    assert_nothing_provisional(target, *([draft] if draft else []))


def test_texts_share_passes() -> None:
    """Three texts of 20 tokens take little more than the passes of one."""
    target = new_target()
    with Engine(target) as engine:
        requests = [engine.admit(TextRequest((n, 2, 3), SamplingParams(), 20)) for n in range(3)]
        in_turn([engine.ask(request) for request in requests])
    found = [request.result().tokens for request in requests]
    assert found == [alone([n, 2, 3], SamplingParams(), 20) for n in range(3)]
    assert len(target.evaluations) < 40
    assert 3 in target.evaluations


def test_a_cancelled_text_leaves_the_others() -> None:
    target, draft = new_target(), new_draft()
    with Engine(target, draft) as engine:
        requests = [engine.admit(TextRequest((n, 2, 3), SamplingParams(), 30)) for n in range(3)]

        def take(n: int) -> tuple[int, ...]:
            for taken, _ in enumerate(engine.ask(requests[n])):
                if n == 1 and taken == 3:
                    engine.cancel(requests[1])
            return requests[n].result().tokens

        found = together(engine, *[lambda n=n: take(n) for n in range(3)])
        assert requests[1].result().finish_reason == "cancelled"
        for n in (0, 2):
            assert found[n] == alone([n, 2, 3], SamplingParams(), 30)
        whole = alone([1, 2, 3], SamplingParams(), 30)
        assert found[1] == whole[: len(found[1])]
    assert_nothing_provisional(target, draft)


def test_a_place_that_is_free_is_taken_before_the_next_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next pass began before a text that had ended could leave."""
    n_at_once = []

    class Counting(FakeModel):
        def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
            n_at_once.append(len(parts))
            return super()._evaluate(parts)

    def begun(token: int, n_tokens: int) -> Generation:
        return engine.ask(engine.admit(TextRequest((token,), SamplingParams(), n_tokens)))

    target = Counting(LANGUAGE, N_VOCAB, n_texts=2, n_ctx=256)
    monkeypatch.setattr("edgespec.engine.scheduler.GATHERING_S", 0.5)
    with Engine(target, None, EngineSettings()) as engine, ThreadPoolExecutor(1) as pool:
        first, after = begun(1, 4), begun(3, 30)
        next(first)
        other = pool.submit(list, begun(2, 12))
        assert len([next(first) for _ in range(3)]) == 3
        sleep(0.1)  # its last token is written, and it has not left
        assert not other.done()
        assert next(first, None) is None
        next(after)
        assert len(other.result(timeout=60)) == 12
        after.close()
    assert n_at_once[0] == 1
    assert set(n_at_once[1:]) == {2}


def test_an_error_of_the_target_reaches_every_text_of_the_pass_and_none_after_it() -> None:
    target = new_target(2)

    def fail_once(model: FakeModel) -> None:
        if len(model.evaluations) == 4:
            model.hook = None
            raise ModelError("broken")

    target.hook = fail_once
    with Engine(target) as engine:
        requests = [engine.admit(TextRequest((n, 2), SamplingParams(), 20)) for n in range(2)]

        def take(n: int) -> str:
            try:
                list(engine.ask(requests[n]))
            except ModelError as error:
                return str(error)
            return ""

        found = together(engine, *[lambda n=n: take(n) for n in range(2)])
        assert "broken" in found
        assert written(engine, (5, 2), SamplingParams(), 9) == alone((5, 2), SamplingParams(), 9)
    assert_nothing_provisional(target)


def test_a_prompt_that_others_hold_is_not_read_again() -> None:
    target = new_target()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 4
    with Engine(target) as engine:
        written(engine, prompt, SamplingParams(), 2)
        n_read = sum(target.prefilled)
        first = engine.ask(engine.admit(TextRequest((*prompt, 7), SamplingParams(), 9)))
        next(first)
        second = engine.admit(TextRequest((*prompt, 8), SamplingParams(), 9))
        assert len(list(engine.ask(second))) == 9
        list(first)
    assert sum(target.prefilled) == n_read
    assert second.tally.reused_tokens == len(prompt)
    assert second.result().tokens == alone((*prompt, 8), SamplingParams(), 9)


def test_a_long_prompt_is_read_in_portions_beside_a_text() -> None:
    target = new_target(2, max_nodes=8)
    target.info = replace(target.info, prompt_batch=16)
    with Engine(target) as engine:
        first = engine.ask(engine.admit(TextRequest((1, 2), SamplingParams(), 60)))
        next(first)
        begun = len(target.evaluations)
        second = engine.admit(TextRequest(tuple([1, 2, 3, 4] * 20), SamplingParams(), 2))
        list(engine.ask(second))
        assert max(target.prefilled) <= 16
        assert sum(target.prefilled) >= 78
        assert len(target.evaluations) - begun >= 4, "the first text went on meanwhile"
        first.close()


def test_prompts_that_come_one_by_one_cost_no_pass_of_their_own() -> None:
    """Eight texts begin one after another: each prompt is read beside the guesses of others."""
    n_tokens, target = 24, new_target(8)
    with Engine(target) as engine:
        requests = [
            engine.admit(TextRequest((n, *range(3, 20)), SamplingParams(), n_tokens))
            for n in range(8)
        ]
        in_turn([engine.ask(request) for request in requests])
    assert target.n_passes <= n_tokens + 8
    for n, request in enumerate(requests):
        assert request.result().tokens == alone((n, *range(3, 20)), SamplingParams(), n_tokens)


def test_guesses_are_verified_in_the_passes_that_read_a_long_prompt() -> None:
    target, draft = new_target(2, max_nodes=16), new_draft(2)
    target.info = replace(target.info, prompt_batch=24)
    with Engine(target, draft, EngineSettings(step_aside=False)) as engine:
        first = engine.ask(engine.admit(TextRequest((1, 2), SamplingParams(), 200)))
        for _ in range(5):
            next(first)
        n_before, n_evaluated = target.n_passes, len(target.evaluations)
        second = engine.admit(TextRequest(tuple([1, 2, 3, 4] * 30), SamplingParams(), 1))
        assert [event.token for event in engine.ask(second)] == [
            *alone([1, 2, 3, 4] * 30, SamplingParams(), 1)
        ]
        assert target.n_passes - n_before <= 120 // (24 - 16) + 2
        assert max(target.evaluations[n_evaluated:]) > 2
        first.close()


def test_a_pass_that_fails_leaves_nothing_of_the_prompts_in_it() -> None:
    target = new_target(2)

    def fail_once(model: FakeModel) -> None:
        if model.n_passes == 2:
            model.hook = None
            raise ModelError("broken")

    with Engine(target) as engine:
        first = engine.ask(engine.admit(TextRequest((1, 2), SamplingParams(), 20)))
        next(first), next(first)
        target.hook = fail_once
        second = engine.ask(engine.admit(TextRequest((5, 2, 7, 8), SamplingParams(), 9)))
        with pytest.raises(ModelError):
            list(second)
        assert target.text(1) == ()
        first.close()
        found = written(engine, (5, 2, 7, 8), SamplingParams(), 9)
        assert found == alone((5, 2, 7, 8), SamplingParams(), 9)


def test_prompts_that_are_read_alone_leave_room_for_their_trees() -> None:
    """A pass got a node more than it takes, and all its texts failed."""
    target = FakeModel(random_language(1, N_VOCAB), N_VOCAB, n_ctx=512, n_texts=2, max_nodes=8)
    target.info = replace(target.info, prompts_share_passes=False)
    with Engine(target) as engine:
        prompts = [(1, 2, 3, 4, *[6] * 8), tuple([7, 8, 9] * 7)]
        finish(engine.generate([1, 2, 3, 4, 5], GREEDY, 1))
        texts = [engine.ask(engine.admit(TextRequest(p, GREEDY, 5))) for p in prompts]
        for text in texts:
            text.run_ahead()
        assert [finish(text).finish_reason for text in texts] == ["length"] * 2
