"""The speculative loop: grow, verify, accept, commit, re-root, adapt, yield.

It puts the rules in order and keeps both models' KV caches a transaction. It knows models only
through the port, and no rule from the inside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence

from edgespec.concurrency.owning import Closeable
from edgespec.engine.admission import admit, check_drafters, notes_on, obstacle
from edgespec.engine.decision import RoundPlanner
from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.lineup import line_up
from edgespec.engine.drafting.remembering import Memory
from edgespec.engine.learning import Learning
from edgespec.engine.pair import Pair
from edgespec.engine.prompt import read_prompt, read_tail
from edgespec.engine.request import ActiveRequest
from edgespec.engine.round import begin_round
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.errors import Cancelled, UsageError
from edgespec.ports import LanguageModel, Progress
from edgespec.ports.text_request import TextRequest
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.tree import TokenTree
from edgespec.values import GenerationResult, TokenEvent

__all__ = ["Engine", "EngineSettings"]


class Engine(Closeable):
    """Generates text with a target and, if there is one, a draft.

    The models are borrowed: closing the engine ends its thread and leaves them open. One generation
    runs at a time; what the rules have learnt, and the KV of a common prefix, serve the next one.
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
    ) -> None:
        settings = settings or EngineSettings()
        check_drafters(settings, draft, drafters)
        reason = obstacle(target, draft)
        grower = line_up(target, None if reason else draft, drafters, settings)
        self._pair = Pair(target, grower, clock, trace)
        self._rules = settings.rules_for(target.info)
        self._learning = Learning(target, draft, grower, settings, memory)
        self._notes = notes_on(reason, self._rules.acceptance, grower is not None)
        self._turning = threading.RLock()
        """Held while a request begins, ends or is cancelled, so that cancelling one cannot stop the
        models of the next."""
        self._is_closed = False

    def close(self) -> None:
        """End the engine's thread. Idempotent; close a running generation first."""
        self._is_closed = True
        self._pair.close()

    def cancel(self, request: ActiveRequest | None = None) -> None:
        """From any thread: end `request`, or the one that runs; its reason is "cancelled"."""
        with self._turning:
            request = request or self._pair.running
            if request is not None:
                request.cancelled.set()
            if request is self._pair.running:
                self._pair.cancel()

    def admit(self, terms: TextRequest) -> ActiveRequest:
        """The request, ready for `run`. Raises UsageError if the target cannot serve it."""
        rule = self._rules.acceptance if self._pair.grower is not None else None
        return admit(self._pair.target, terms, rule)

    @property
    def committed(self) -> Sequence[int]:
        """Tokens whose KV the target holds, of the latest text."""
        return tuple(self._pair.committed)

    @property
    def planner(self) -> RoundPlanner:
        """The round planner with all it has learnt so far."""
        return self._learning.planner

    def forget(self) -> None:
        """Leave the models without a text."""
        self._pair.rewind(0)

    @property
    def n_tiled(self) -> int:
        """Number of committed tokens that were computed in tiles."""
        return self._pair.n_tiled

    def adopt(self, tokens: Sequence[int], n_tiled: int = 0) -> None:
        """Take `tokens` as committed: their KV was loaded into the target, that of a part into the
        draft; `n_tiled` of them were computed in tiles."""
        self._pair.committed = list(tokens)
        self._pair.n_tiled = n_tiled

    def run(self, request: ActiveRequest) -> Generator[TokenEvent, None, None]:
        """Yield the tokens of a request. However it ends, no model holds provisional KV then.

        Errors of the models come out of the generator, after the tokens accepted before them, and
        the engine can be used again; neither they, nor Ctrl-C, nor closing the generator leave a
        model at work.
        """
        self._check_idle()
        pair, trace = self._pair, self._pair.trace
        with self._turning:
            pair.running = request
        for note in self._notes:
            request.tally.note(note)
        try:
            with trace.span(Track.ENGINE, "generation"):
                if not request.transcript.is_finished:
                    if pair.grower is not None:
                        pair.grower.begin_text(request.sampler.params)
                    read_prompt(pair, request, self._learning)
                    yield from self._rounds(request)
        except Cancelled:
            request.transcript.cancel()
        finally:
            try:
                pair.rewind(len(pair.committed))
            finally:
                with self._turning:
                    pair.running = None
                trace.flush()
                if request.tally.outcomes:
                    self._learning.keep()

    def _rounds(self, request: ActiveRequest) -> Generator[TokenEvent, None, None]:
        """The loop. A tree's root is the last token of the text: committed, and in no KV yet."""
        pair, transcript = self._pair, request.transcript
        first = read_tail(pair, request)
        if first is not None:
            yield first
        tree = TokenTree(first.token if first else request.prompt[-1], self._rules.tree_capacity)
        while not transcript.is_finished:
            round_ = begin_round(pair, self._rules, self._learning.planner, tree, request)
            tree = round_.grow(tree, request.sampler)
            nodes = round_.select(tree)
            logits = pair.evaluate(tree, nodes, round_.beside(tree, nodes))
            accepted = round_.accept(tree, nodes, logits, request)
            pair.commit(tree, accepted.path)
            round_.witness(tree, nodes, logits, accepted)
            del logits  # the plan has no room for them beside those of the next pass
            rerooted = round_.reroot(tree, accepted, transcript.is_finished)
            outcome = round_.end(tree, nodes, accepted, rerooted)
            request.tally.outcomes.append(outcome)
            self._learning.see_round(outcome)
            yield from accepted.events
            if failure := accepted.failure or round_.failure:
                raise failure
            tree = rerooted

    def generate(
        self,
        prompt_tokens: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Generator[TokenEvent, None, GenerationResult]:
        """`run` a `request`; the generator returns the whole result."""
        self._check_idle()
        terms = TextRequest(tuple(prompt_tokens), sampling, max_tokens, stop, progress=progress)
        return self._whole(self.admit(terms))

    def _whole(self, request: ActiveRequest) -> Generator[TokenEvent, None, GenerationResult]:
        before = self._pair.target.paging()
        yield from self.run(request)
        return request.result(self._pair.target.paging().since(before))

    def _check_idle(self) -> None:
        if self._is_closed:
            raise UsageError("the engine is closed")
        if self._pair.running is not None:
            raise UsageError("the engine runs one generation at a time: finish or close the other")
