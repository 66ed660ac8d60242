"""Errors, interruptions and what they leave: nothing provisional, no thread, a usable engine."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import pytest

from edgespec.engine.generation import Generation
from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError, ModelError, SessionClosed
from edgespec.ports import PassPart
from engine_cases import (
    COUNTING,
    GREEDY,
    N_VOCAB,
    PROMPT,
    Failing,
    assert_nothing_provisional,
    counting,
    finish,
    follow,
    generate,
)
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, fixed_text

# Provisional KV is a transaction


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_after_an_error_the_engine_can_be_used_again(role: str, n: int) -> None:
    target, draft = counting(stall_share=0.9), counting()
    failing = target if role == "target" else draft
    failing.hook = Failing(n, ModelError("the disk is gone"))
    with Engine(target, draft) as engine:
        with pytest.raises(ModelError):
            finish(engine.generate(PROMPT, GREEDY, 200))
        assert_nothing_provisional(target, draft)
        assert finish(engine.generate(PROMPT, GREEDY, 30)).tokens == tuple(
            n % 10 for n in range(30)
        )


def test_closing_a_generation_early_leaves_nothing_provisional() -> None:
    target, draft = counting(), counting()
    with Engine(target, draft) as engine:
        events = engine.generate(PROMPT, GREEDY, 30)
        next(events)
        events.close()
        assert_nothing_provisional(target, draft)
        assert finish(engine.generate(PROMPT, GREEDY, 3)).tokens == (0, 1, 2)


def test_the_next_call_reads_only_what_differs_from_the_last_one() -> None:
    target, draft = counting(), counting()
    with Engine(target, draft) as engine:
        first = finish(engine.generate(PROMPT, GREEDY, 3))
        n_passes = len(target.evaluations)
        finish(engine.generate([*PROMPT, *first.tokens, 3, 4], GREEDY, 2))
    assert target.prefilled == [3]
    assert target.evaluations[n_passes] == 3, "the rest is read in the pass of the first token"


def test_what_differs_is_prefilled_where_it_does_not_fit_into_a_pass() -> None:
    target = counting(max_nodes=2)
    with Engine(target, counting()) as engine:
        first = finish(engine.generate(PROMPT, GREEDY, 3))
        finish(engine.generate([*PROMPT, *first.tokens, 3, 4], GREEDY, 2))
    assert target.prefilled == [3, 2]


class Forgetful(FakeModel):
    """Loses its whole text when a pass fails, as recurrent models may."""

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        try:
            return super()._evaluate(parts)
        except ModelError:
            self.truncate(0)
            raise


def test_what_a_model_lost_in_a_failed_pass_is_read_again() -> None:
    target = Forgetful(COUNTING, N_VOCAB, hook=Failing(4, ModelError("the disk is gone")))
    with Engine(target, counting()) as engine:
        with pytest.raises(ModelError):
            finish(engine.generate(PROMPT, GREEDY, 30))
        assert engine.committed == ()
        assert finish(engine.generate(PROMPT, GREEDY, 3)).tokens == (0, 1, 2)


def test_every_error_of_a_pass_keeps_its_type() -> None:
    for error in (ModelError("a"), EdgespecError("b"), OSError("c"), TimeoutError("d")):
        engine = Engine(counting(hook=Failing(2, error)))
        with engine, pytest.raises(type(error)) as caught:
            finish(engine.generate(PROMPT, GREEDY, 3))
        assert caught.value is error


# Interruptions


def engine_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("edgespec")}


def test_an_interrupt_stops_the_pass_before_it_reaches_the_caller() -> None:
    """Ctrl-C lands in the main thread while the target is at work in the other."""
    target, draft = counting(stall_share=0.9), counting()
    pass_ended = threading.Event()

    def slow(model: FakeModel) -> None:
        if model.prefilled:
            model.wait_until(lambda: False)  # only `cancel` ends it
            pass_ended.set()

    target.hook = slow
    draft.hook = Failing(3, KeyboardInterrupt())
    settings = EngineSettings(fallback="fixed", draft_max=1, step_aside=False)
    with Engine(target, draft, settings) as engine:
        with pytest.raises(KeyboardInterrupt):
            finish(engine.generate(PROMPT, GREEDY, 30))
        assert pass_ended.is_set()
        assert_nothing_provisional(target, draft)
        target.hook = draft.hook = None
        assert finish(engine.generate(PROMPT, GREEDY, 2)).tokens == (0, 1)


def test_a_cancelled_text_has_every_token_that_was_accepted() -> None:
    """The draft is told to stop while it reads what the round has just accepted."""
    target, draft = counting(), counting()
    settings = EngineSettings(n_candidates=1, fallback="fixed", draft_max=2, step_aside=False)
    with Engine(target, draft, settings) as engine:

        def cancel_in_follow(model: FakeModel) -> None:
            if len(target.evaluations) == 1:
                engine.cancel()

        draft.hook = cancel_in_follow
        events, result = follow(engine.generate(PROMPT, GREEDY, 30))
    assert tuple(event.token for event in events) == result.tokens == (0, 1, 2)
    assert result.finish_reason == "cancelled"


def test_prompts_and_passes_compute_in_one_thread() -> None:
    """Ctrl-C, which Python hears in the main thread, cannot break into them."""
    threads = set()
    target, draft = counting(), counting()
    target.hook = draft.hook = lambda model: threads.add(threading.current_thread())
    others = engine_threads()  # of engines that other modules keep
    with Engine(target, draft) as engine:
        for prompt in (PROMPT, [5, *PROMPT]):
            finish(engine.generate(prompt, GREEDY, 9))
        (thread,) = engine_threads() - others
        assert threads == {thread}


def test_cancelling_is_heard_although_the_model_missed_it() -> None:
    """The call that `cancel` is meant for may be about to begin."""

    class Deaf(FakeModel):
        n_missed = 0

        def cancel(self) -> None:
            self.n_missed += 1
            if self.n_missed > 1:
                super().cancel()

    target = Deaf(COUNTING, N_VOCAB)
    with Engine(target) as engine:
        begun = threading.Event()

        def reading(model: FakeModel) -> None:
            begun.set()
            model.wait_until(lambda: False)

        target.hook = reading
        canceller = threading.Thread(target=lambda: (begun.wait(), engine.cancel()))
        canceller.start()
        result = finish(engine.generate(PROMPT, GREEDY, 30))
        canceller.join()
    assert (result.finish_reason, result.tokens) == ("cancelled", ())


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """A test run in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_real_ctrl_c_during_a_pass_reaches_the_caller() -> None:
    target = counting()
    target.hook = lambda model: model.wait_until(lambda: not model.prefilled)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    ctrl_c = threading.Timer(0.05, signal.pthread_kill, (main_thread, signal.SIGINT))
    with Engine(target) as engine:
        ctrl_c.start()
        with pytest.raises(KeyboardInterrupt):
            finish(engine.generate(PROMPT, GREEDY, 30))
        ctrl_c.join()
        target.hook = None
        assert finish(engine.generate(PROMPT, GREEDY, 2)).tokens == (0, 1)


# A draft that fails


def with_nan(model: FakeModel, is_damaged: Callable[[tuple[int, ...]], bool]) -> FakeModel:
    language = model.language
    broken = np.full(N_VOCAB, np.nan, np.float32)
    model.language = lambda context: broken if is_damaged(context) else language(context)
    return model


@pytest.mark.parametrize("n_fine", [0, 1, 6])
def test_a_draft_whose_logits_are_damaged_steps_aside(n_fine: int) -> None:
    draft = with_nan(counting(), lambda context: len(context) >= len(PROMPT) + n_fine)
    result = generate(counting(), draft, lookup=False)
    assert result.tokens == generate(counting()).tokens
    (note,) = result.notes
    assert "best logit is nan" in note
    assert "went on without it" in note


def test_damaged_logits_at_a_rejected_guess_harm_no_text() -> None:
    """Whoever learns from rejected guesses leaves them out."""
    target = with_nan(counting(), lambda context: context[-1] == 11)
    wrong = FakeModel(fixed_text([11], N_VOCAB, 0), N_VOCAB)
    assert generate(target, wrong).tokens == generate(counting()).tokens


def test_tokens_that_stand_are_yielded_although_the_draft_fails_to_follow() -> None:
    """It reads the prompt, guesses twice, and fails where it reads what was accepted."""
    target, draft = counting(), counting(hook=Failing(4, BrokenPipeError("the draft is gone")))
    rules = {"n_candidates": 1, "fallback": "fixed", "draft_max": 2, "lookup": False}
    with Engine(target, draft, EngineSettings(step_aside=False, **rules)) as engine:
        events = engine.generate(PROMPT, GREEDY, 30)
        assert [next(events).token for _ in range(3)] == [0, 1, 2]
        with pytest.raises(BrokenPipeError):
            next(events)
    assert target.evaluations == [3]


def test_closing_ends_texts_that_wait_asynchronously_for_their_first_pass() -> None:
    started = threading.Event()

    def endless(model: FakeModel) -> None:
        started.set()
        model.wait_until(lambda: False)

    engine = Engine(counting(hook=endless))

    async def take(text: Generation) -> None:
        with suppress(SessionClosed):
            async for _ in text:
                pass

    async def close() -> None:
        first = asyncio.create_task(take(engine.generate(PROMPT, GREEDY, 5)))
        await asyncio.to_thread(started.wait)
        second = asyncio.create_task(take(engine.generate(PROMPT, GREEDY, 5)))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.close)
        await asyncio.wait_for(asyncio.gather(first, second), 10)

    asyncio.run(close())


def test_a_text_that_a_closed_engine_refused_is_refused_again() -> None:
    engine = Engine(counting())
    text = engine.generate(PROMPT, GREEDY, 3)
    engine.close()

    async def refused() -> None:
        for _ in range(2):
            with pytest.raises(SessionClosed):
                await asyncio.wait_for(anext(text), 10)

    asyncio.run(refused())
