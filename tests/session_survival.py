"""Uses sessions in odd orders and from several threads, as a program of its own.

A native crash then is a test that failed, and no dead suite. Arguments: the kind of pair, a folder
for its files, and either `open` or how many steps hypothesis's state machine takes.
"""

from __future__ import annotations

import faulthandler
import gc
import queue
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edgespec.engine.generation import Generation
from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError
from edgespec.ports import LanguageModel
from edgespec.registry import find
from edgespec.session.session import LoadedModels, Session
from edgespec.values import TokenEvent
from gguf_files import tiny_llama
from paging_contract import load_paged
from port_models import model_request
from session_cases import PLAN

PROMPT = "the other one"
N_TOKENS = 40
N_VOCAB = 297
HANG_S = 600.0
"""A program that takes longer for one example waits for itself."""
STEPS_AN_EXAMPLE = 50
PAGED = replace(PLAN, paged=True)


class LoadedPair:
    """Files of a target and a draft; the target is paged with room for half its weights."""

    def __init__(self, kind: str, folder: Path) -> None:
        target, draft = kind.split("+")
        self._target, self._draft = (
            _write(part, folder / role) for part, role in ((target, "target"), (draft, "draft"))
        )
        with self.load() as session:
            self.text = session.generate(PROMPT, max_tokens=N_TOKENS).tokens
            self.encoded = session.encode(PROMPT)

    def load(self) -> Session:
        draft = _open(self._draft, "draft", paged=False)
        target = _open(self._target, "target", paged=True)
        models = LoadedModels(target, draft, PAGED, {"total": 0.0})
        rules = EngineSettings(fallback="fixed", draft_max=3, step_aside=False)
        return Session(models, rules)


def _write(kind: str, path: Path) -> Path:
    if kind == "gguf":
        return tiny_llama().write(path.with_suffix(".gguf"))
    from onnx_files import write_llama

    return write_llama(path, vocab=N_VOCAB, context=128).parent


def _open(path: Path, owner: str, paged: bool) -> LanguageModel:
    request = model_request(path, owner=owner, max_nodes=8)
    prepared = find(path).prepare(request)
    if paged:
        return load_paged(prepared, 0.5)
    with closing(prepared):
        return prepared.load(None)


def the_process_ends_with_everything_open(pair: LoadedPair) -> tuple[Session, Generation]:
    session = pair.load()
    generation = session.stream(PROMPT)
    next(generation)
    return session, generation


Task = tuple[Callable[[], object] | None, threading.Event]


class Hand(threading.Thread):
    """A thread that does one thing after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._to_do: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self.failures: list[BaseException] = []
        self.start()

    def do(self, call: Callable[[], object] | None, patience_s: float = 0.0) -> None:
        """Have `call` made when what came before is done; None ends the thread.

        Waits for it a little, for it may wait for its turn for ever.
        """
        done = threading.Event()
        self._to_do.put((call, done))
        done.wait(patience_s)

    def run(self) -> None:
        while True:
            call, done = self._to_do.get()
            if call is None:
                return
            try:
                call()
            except (EdgespecError, StopIteration) as error:
                COUNTS[type(error).__name__] += 1
            except BaseException as error:  # noqa: BLE001 - told by the machine
                self.failures.append(error)
            del call
            done.set()


COUNTS: Counter[str] = Counter()
"""Counts of what happened, for whoever doubts that much did."""
HANDS = st.integers(0, 2)
ANY = st.integers(0, 7)
PATIENCE_S = st.sampled_from([0.0, 0.01, 0.2])
SELDOM = st.integers(0, 7).map(lambda n: n == 7)
PAIR: list[LoadedPair] = []


class Sessions(RuleBasedStateMachine):
    """Whatever can be done with sessions and generations, by three threads and the main one."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = PAIR[0]
        self.hands = [Hand() for _ in range(3)]
        self.sessions = [self.pair.load()]
        self.generations = [self.sessions[0].stream(PROMPT, max_tokens=n) for n in (9, N_TOKENS)]

    def session(self, which: int) -> Session:
        return self.sessions[which % len(self.sessions)]

    def take(self, which: int) -> Session:
        """The choices of the machine depend on no other thread: a session is closed once."""
        return self.sessions.pop(which % len(self.sessions))

    def generation(self, which: int) -> Generation:
        return self.generations[which % len(self.generations)]

    @precondition(lambda self: len(self.sessions) < 2)
    @rule()
    def load(self) -> None:
        self.sessions.append(self.pair.load())

    @precondition(lambda self: self.sessions and len(self.generations) < 8)
    @rule(which=ANY, max_tokens=st.integers(0, N_TOKENS), as_text=st.booleans())
    def stream(self, which: int, max_tokens: int, as_text: bool) -> None:
        prompt = PROMPT if as_text else self.pair.encoded
        self.generations.append(self.session(which).stream(prompt, max_tokens=max_tokens))

    @precondition(lambda self: self.generations)
    @rule(hand=HANDS, which=ANY, n=st.integers(1, 12), patience_s=PATIENCE_S)
    def advance(self, hand: int, which: int, n: int, patience_s: float) -> None:
        generation = self.generation(which)

        def advance() -> None:
            for _ in range(n):
                self.check(next(generation))

        self.hands[hand].do(advance, patience_s)

    @precondition(lambda self: self.generations)
    @rule(hand=HANDS, which=ANY, patience_s=PATIENCE_S)
    def finish(self, hand: int, which: int, patience_s: float) -> None:
        generation = self.generation(which)

        def finish() -> None:
            for event in generation:
                self.check(event)
            tokens = generation.result.tokens
            assert tokens == self.pair.text[: len(tokens)]
            COUNTS[f"ended by {generation.result.finish_reason}"] += 1

        self.hands[hand].do(finish, patience_s)

    @precondition(lambda self: self.sessions)
    @rule(hand=HANDS, which=ANY, n=st.integers(0, 9), patience_s=PATIENCE_S)
    def generate(self, hand: int, which: int, n: int, patience_s: float) -> None:
        session = self.session(which)

        def generate() -> None:
            result = session.generate(PROMPT, max_tokens=n)
            assert result.tokens == self.pair.text[: len(result.tokens)]

        self.hands[hand].do(generate, patience_s)

    @precondition(lambda self: self.sessions)
    @rule(hand=HANDS, which=ANY)
    def encode(self, hand: int, which: int) -> None:
        session = self.session(which)
        self.hands[hand].do(lambda: session.encode(PROMPT))

    @precondition(lambda self: self.generations)
    @rule(which=ANY)
    def drop(self, which: int) -> None:
        self.generations.pop(which % len(self.generations))

    @precondition(lambda self: self.generations)
    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        self.generation(which).cancel()

    @precondition(lambda self: self.sessions)
    @rule(which=ANY, really=SELDOM)
    def cancel_all(self, which: int, really: bool) -> None:
        if really:
            self.session(which).cancel()

    @precondition(lambda self: self.generations)
    @rule(which=ANY)
    def close(self, which: int) -> None:
        self.generation(which).close()

    @precondition(lambda self: self.generations)
    @rule(hand=HANDS, which=ANY)
    def close_elsewhere(self, hand: int, which: int) -> None:
        self.hands[hand].do(self.generation(which).close)

    @precondition(lambda self: self.sessions)
    @rule(which=ANY, really=SELDOM)
    def close_session(self, which: int, really: bool) -> None:
        if really:
            self.take(which).close()

    @precondition(lambda self: self.sessions)
    @rule(hand=HANDS, which=ANY, really=SELDOM)
    def close_session_elsewhere(self, hand: int, which: int, really: bool) -> None:
        if really:
            self.hands[hand].do(self.take(which).close)

    @precondition(lambda self: self.sessions)
    @rule(which=ANY, really=SELDOM)
    def forget_session(self, which: int, really: bool) -> None:
        if really:
            self.take(which)

    @rule(hand=HANDS, here=st.booleans())
    def collect(self, hand: int, here: bool) -> None:
        if here:
            gc.collect()
        else:
            self.hands[hand].do(gc.collect)

    @precondition(lambda self: self.generations)
    @rule(which=ANY)
    def ask(self, which: int) -> None:
        with suppress(EdgespecError):
            _ = self.generation(which).result

    @invariant()
    def nothing_else_went_wrong(self) -> None:
        COUNTS["steps"] += 1
        for hand in self.hands:
            for failure in hand.failures:
                raise failure

    def check(self, event: TokenEvent) -> None:
        """Whatever others do meanwhile, the text is the target's."""
        assert event.token in self.pair.text
        COUNTS["tokens"] += 1

    def teardown(self) -> None:
        for session in self.sessions:
            session.close()
        for generation in self.generations:
            generation.close()
        self.sessions.clear()
        self.generations.clear()
        for hand in self.hands:
            hand.do(None)
        gc.collect()
        for hand in self.hands:
            hand.join()
        self.nothing_else_went_wrong()
        faulthandler.dump_traceback_later(HANG_S, exit=True)


def main(kind: str, folder: str, what: str) -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    pair = LoadedPair(kind, Path(folder))
    if what == "open":
        sys.modules["__main__"].kept = the_process_ends_with_everything_open(pair)  # type: ignore[attr-defined]
        return
    warnings.simplefilter("ignore", ResourceWarning)
    PAIR.append(pair)
    run_state_machine_as_test(
        Sessions,
        settings=settings(
            max_examples=max(1, int(what) // STEPS_AN_EXAMPLE),
            stateful_step_count=STEPS_AN_EXAMPLE,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    sys.stdout.write(f"done: {dict(COUNTS)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
