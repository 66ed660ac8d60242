"""The engine: admits requests, assigns each a text, and runs passes until they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.concurrency.queueing import FairLock
from edgespec.concurrency.worker import Worker
from edgespec.engine.admission import admit, check_drafters, notes_on, obstacle
from edgespec.engine.decision import RoundPlanner
from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.lineup import line_up
from edgespec.engine.drafting.remembering import Memory
from edgespec.engine.drafting.trust import Mixer
from edgespec.engine.learning import Learning
from edgespec.engine.loop import Loop
from edgespec.engine.pair import Pair
from edgespec.engine.passes import Passes
from edgespec.engine.places import choose_place
from edgespec.engine.request import ActiveRequest
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.engine.text import TextAtWork
from edgespec.errors import Cancelled, UsageError
from edgespec.ports import LanguageModel, Progress
from edgespec.ports.features import GivesFeatures, ReadsFeatures
from edgespec.ports.text_request import TextRequest
from edgespec.ports.texts import texts_of
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.values import GenerationResult, TokenEvent

if TYPE_CHECKING:
    from edgespec.engine.corrections import CorrectionLog


GATHERING_SHARE = 0.02
"""Fraction of the usual pass time for which a pass waits for new texts after places became free, as
a text that begins later waits for a whole pass."""


class Engine(Closeable):
    """Generates text with a target and an optional draft.

    The models are borrowed: closing the engine ends its threads and leaves the models open. As many
    generations run at a time as the target holds texts. Learnt state and the KV of common prefixes
    are reused by later generations.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None = None,
        settings: EngineSettings | None = None,
        clock: Callable[[], float] = time.perf_counter,
        trace: Trace = OFF,
        drafters: Sequence[Drafter] = (),
        memory: Memory | None = None,
        observer: CorrectionLog | None = None,
    ) -> None:
        """`drafters` guess in addition to the draft model, in the first text only."""
        settings = settings or EngineSettings()
        check_drafters(settings, draft, drafters)
        reason = obstacle(target, draft)
        self._draft = draft
        self._draws = settings.draws_guesses
        """True if all drawn guesses must be verified, so that only one text can run at a time."""
        self._passes = Passes(target, clock, trace)
        if not reason and isinstance(draft, ReadsFeatures) and isinstance(target, GivesFeatures):
            target.give_features(draft.feature_layers, draft.take_features)
            self._passes.calls_back = True
        self._pairs = _pairs(self._passes, None if reason else draft, drafters, settings)
        self._rules = settings.rules_for(target.info)
        self._shift = settings.shift
        grower = self._pairs[0].grower
        self._learning = Learning(target, draft, grower, settings, memory)
        self._observer = observer
        self._loop = Loop(self._passes, self._rules, self._learning, observer)
        has_grower, n_places = grower is not None, len(self._pairs)
        self._notes = notes_on(reason, self._rules.acceptance, has_grower, n_places)
        self._texts: list[TextAtWork] = []
        """Active texts, in the order in which they began."""
        self._n_begun = 0
        self._turning = threading.RLock()
        """Held while a request begins, ends or is cancelled, so that a cancellation cannot stop the
        models of the next request."""
        self._driving = FairLock()
        """Held by the thread that uses the models."""
        self._driver = Worker()
        """Runs passes if the engine has several texts."""
        self._gathers_until = 0.0
        """Time until which the next pass waits for texts that begin."""
        self._is_full = threading.Event()
        """Set while no place is free."""
        self._is_closed = False

    @property
    def n_texts(self) -> int:
        """Number of generations that can run at a time."""
        return 1 if self._draws else min(len(self._pairs), self._rules.max_nodes)

    def close(self) -> None:
        """Stop the engine's threads. Idempotent; close running generations first."""
        self._is_closed = True
        close_all(self._driver.close, self._passes.close)

    def cancel(self, request: ActiveRequest | None = None) -> None:
        """End `request`, or all active ones, with the reason "cancelled"; callable from any
        thread."""
        with self._turning:
            running = [text.request for text in self._texts]
            for each in running if request is None else [request]:
                each.cancelled.set()
            is_at_work = request is None or request in running
            if is_at_work and all(each.cancelled.is_set() for each in running):
                for pair in self._pairs:
                    pair.cancel()

    def admit(self, terms: TextRequest) -> ActiveRequest:
        """Prepare a request for `run`. Raises UsageError if the target cannot serve it."""
        rule = self._rules.acceptance if self._pairs[0].grower is not None else None
        return admit(self._passes.target, terms, rule, self._shift)

    def has_place_for(self, request: ActiveRequest) -> bool:
        """True if the request can begin now; one with a prompt cache needs text 0."""
        free = [pair for pair in self._pairs[: self.n_texts] if pair.running is None]
        return any(request.terms.keeper is None or pair.text == 0 for pair in free)

    @property
    def committed(self) -> Sequence[int]:
        """Committed tokens of text 0."""
        return tuple(self._pairs[0].committed)

    @property
    def planner(self) -> RoundPlanner:
        """The current round planner."""
        return self._learning.planner

    def forget(self) -> None:
        """Drop all committed text from the models."""
        for pair in self._pairs:
            pair.rewind(0)

    @property
    def n_tiled(self) -> int:
        """Number of committed tokens of text 0 that were computed in tiles."""
        return self._pairs[0].n_tiled

    @property
    def n_leading(self) -> int:
        """Length of the prefix of text 0 that the draft holds without a gap."""
        grower = self._pairs[0].grower
        return grower.n_leading if grower is not None else 0

    def adopt(self, tokens: Sequence[int], n_tiled: int = 0) -> None:
        """Set the committed tokens of text 0 after their KV was loaded into the models; `n_tiled`
        of them were computed in tiles."""
        pair = self._pairs[0]
        pair.committed = list(tokens)
        pair.n_drafted = len(tokens)
        pair.n_tiled = n_tiled

    def run(self, request: ActiveRequest) -> Generator[TokenEvent, None, None]:
        """Yield the tokens of a request.

        Errors of the models are raised after the tokens accepted before them. After an error,
        Ctrl-C or closing the generator, no model is running or holds provisional KV, and the engine
        can be used again. Several generators may run at a time, each in a thread of its own.
        """
        text = self._begin(request)
        try:
            with self._passes.trace.span(Track.ENGINE, "generation"):
                while True:
                    while text.events:
                        yield text.events.popleft()
                    text.raise_failure()
                    if request.transcript.is_finished:
                        break
                    self._drive(text)
        except Cancelled:
            request.transcript.cancel()
        finally:
            self._end(text)

    def _begin(self, request: ActiveRequest) -> TextAtWork:
        self._check_idle()
        with self._driving, self._turning:
            self._check_idle()
            for note in self._notes:
                request.tally.note(note)
            if request.terms.keeper is not None and self._pairs[0].running is not None:
                request.terms = replace(request.terms, keeper=None)
                request.tally.note("the prompt cache was not used: another text had its place")
            pair = choose_place(self._pairs[: self.n_texts], request, self._draft)
            self._n_begun += 1
            pair.running, pair.last_use = request, self._n_begun
            if pair.grower is not None:
                pair.grower.begin_text(request.sampler)
            text = TextAtWork(pair, request, self._rules, self._learning)
            if not self._texts:
                self._gather()
            self._texts.append(text)
            if len(self._texts) >= self.n_texts:
                self._is_full.set()
            return text

    def _end(self, text: TextAtWork) -> None:
        with self._driving:
            try:
                text.pair.rewind(len(text.pair.committed))
            finally:
                with self._turning:
                    text.pair.running = None
                    self._texts.remove(text)
                    self._gather()
                if self._observer is not None:
                    self._observer.see_end(text.request)
                self._passes.trace.flush()
                if text.request.tally.outcomes:
                    self._learning.keep()

    def _drive(self, text: TextAtWork) -> None:
        """Advance this text by a pass, which serves all active texts; the first thread makes it."""
        if len(self._pairs) == 1:
            self._advance()
            return
        gathers_s = self._gathers_until - self._passes.clock()
        if gathers_s > 0 and text.waits:
            self._is_full.wait(gathers_s)
        with self._driving:
            if text.waits:
                self._driver.run(self._advance, text.request.cancelled.set)

    def _gather(self) -> None:
        """Let the next pass wait for requests that begin in the free places."""
        self._is_full.clear()
        self._gathers_until = self._passes.clock() + GATHERING_SHARE * self._passes.usual_pass_s

    def _advance(self) -> None:
        at_work = [text for text in self._texts if text.is_at_work]
        self._loop.advance(at_work)
        if not all(text.is_at_work for text in at_work):
            # otherwise the next pass would begin before their places are free
            self._gather()

    def generate(
        self,
        prompt_tokens: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Generator[TokenEvent, None, GenerationResult]:
        """Admit and `run` a request; the generator returns the result."""
        self._check_idle()
        terms = TextRequest(tuple(prompt_tokens), sampling, max_tokens, stop, progress=progress)
        return self._whole(self.admit(terms))

    def _whole(self, request: ActiveRequest) -> Generator[TokenEvent, None, GenerationResult]:
        before = self._passes.target.paging()
        yield from self.run(request)
        return request.result(self._passes.target.paging().since(before))

    def _check_idle(self) -> None:
        if self._is_closed:
            raise UsageError("the engine is closed")
        if all(pair.running is not None for pair in self._pairs[: self.n_texts]):
            at_a_time = f"{self.n_texts} generations" if self.n_texts > 1 else "one generation"
            raise UsageError(f"the engine runs {at_a_time} at a time: finish or close the other")


def _pairs(
    passes: Passes,
    draft: LanguageModel | None,
    drafters: Sequence[Drafter],
    settings: EngineSettings,
) -> list[Pair]:
    """One pair for each text that the target holds; `drafters` guess in the first."""
    targets = texts_of(passes.target)
    drafts = texts_of(draft)[: len(targets)] if draft is not None else []
    mixer = Mixer()
    pairs = []
    for text, (its_target, its_draft) in enumerate(zip_longest(targets, drafts)):
        others = () if text else drafters
        grower = line_up(its_target, its_draft, others, settings, mixer)
        pairs.append(Pair(its_target, grower, passes, text))
    return pairs
