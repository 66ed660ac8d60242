"""The speculative loop: grow, verify, accept, commit, re-root, adapt, yield.

It puts the rules in order and keeps both models' KV caches a transaction. It knows models only
through the port, and no rule from the inside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial

from edgespec.concurrency.owning import Closeable
from edgespec.engine.acceptance import accept
from edgespec.engine.admission import admit, obstacle
from edgespec.engine.cost_key import CostKey
from edgespec.engine.decision import RoundPlan, RoundPlanner
from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.forced import hang_forced
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.lineup import line_up
from edgespec.engine.drafting.remembering import Memory
from edgespec.engine.outcome import RoundOutcome, Tally
from edgespec.engine.pacer import Limits, LinearPacer
from edgespec.engine.pair import Pair
from edgespec.engine.pair_memory import PairMemory
from edgespec.engine.pass_curve import PassCurve
from edgespec.engine.prompt import read_prompt, read_tail
from edgespec.engine.request import ActiveRequest, TextRequest
from edgespec.engine.round import RoundInProgress, record_round
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.errors import Cancelled, UsageError
from edgespec.ports import LanguageModel, Progress
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.tree import ROOT, TokenTree
from edgespec.values import GenerationResult, PassReport, TokenEvent

__all__ = ["Engine", "EngineSettings"]

PROVISIONAL_FACTOR = 8
"""A tree holds this many times the nodes of one pass: room to grow beside it."""


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
        self.settings = settings or EngineSettings()
        self._target = target
        self._max_nodes = self.settings.max_nodes(target.info)
        self._obstacle = obstacle(target, draft)
        self._grower = line_up(target, None if self._obstacle else draft, drafters, self.settings)
        self._pair = Pair(target, self._grower, clock, trace)
        self._pacer = self.settings.new_pacer() if target.info.tree_capable else LinearPacer()
        self._acceptance = self.settings.new_acceptance()
        self._planner = self._new_planner(draft)
        threads = (target.info.n_threads, draft.info.n_threads if draft is not None else 0)
        key = CostKey.of(target.paging(), threads, self.settings.unusual)
        self._memory = PairMemory(memory, key)
        if self._grower is not None:
            self._planner = self._memory.recall(self._grower, self._planner)
        self._clock = clock
        self._trace = trace
        self._turning = threading.RLock()
        """Held while a request begins, ends or is cancelled: what is meant for one of them may not
        stop the models of the next."""
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
        return admit(self._target, terms)

    @property
    def committed(self) -> Sequence[int]:
        """Tokens whose keys and values the target holds, of the latest text."""
        return tuple(self._pair.committed)

    @property
    def planner(self) -> RoundPlanner:
        """What was learnt of rounds so far."""
        return self._planner

    def forget(self) -> None:
        """Leave the models without a text."""
        self._pair.rewind(0)

    @property
    def n_tiled(self) -> int:
        """Of the committed tokens, those that were computed in tiles."""
        return self._pair.n_tiled

    def adopt(self, tokens: Sequence[int], n_tiled: int = 0) -> None:
        """The models were given the keys and values of `tokens`, the draft those of a part;
        `n_tiled` of them were computed in tiles."""
        self._pair.committed = list(tokens)
        self._pair.n_tiled = n_tiled

    def run(self, request: ActiveRequest) -> Generator[TokenEvent, None, None]:
        """Yield the tokens of a request. When it ends, however, no model holds provisional KV.

        Errors of the models come out of the generator, after the tokens that stand before them, and
        the engine can be used again; neither they, nor Ctrl-C, nor closing the generator leave a
        model at work.
        """
        self._check_idle()
        with self._turning:
            self._pair.running = request
        if self._obstacle:
            request.tally.note(self._obstacle)
        if self._grower is not None and not self._acceptance.lossless:
            request.tally.note(
                f"with the acceptance rule {self._acceptance.name} guesses of the draft change the "
                "text: leave it out for the target's own"
            )
        try:
            with self._trace.span(Track.ENGINE, "generation"):
                if not request.transcript.is_finished:
                    if self._grower is not None:
                        self._grower.sample_at(request.sampler.params.temperature)
                    read_prompt(self._pair, request, partial(self._after_prompt, request))
                    yield from self._rounds(request)
        except Cancelled:
            request.transcript.cancel()
        finally:
            try:
                self._pair.rewind(len(self._pair.committed))
            finally:
                with self._turning:
                    self._pair.running = None
                self._trace.flush()
                if request.tally.outcomes and self._grower is not None:
                    self._memory.keep(self._grower, self._planner)

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
        before = self._target.paging()
        yield from self.run(request)
        return request.result(self._target.paging().since(before))

    def _rounds(self, request: ActiveRequest) -> Generator[TokenEvent, None, None]:
        """The loop. A tree's root is the last token of the text: committed, and in no KV yet."""
        transcript, tally = request.transcript, request.tally
        root_token = request.prompt[-1]
        if len(self._pair.committed) < len(request.prompt) - 1:
            event = read_tail(self._pair, request)
            root_token = event.token
            yield event
        tree = TokenTree(root_token, PROVISIONAL_FACTOR * self._max_nodes)
        while not transcript.is_finished:
            round_ = self._begin(tree, transcript.room, tally)
            if round_.grower is None:
                tree = tree.bare()
            hang_forced(tree, request.sampler, round_.limits)
            round_.grow(tree)
            nodes = round_.select(tree)
            logits = round_.verify(tree, nodes)
            with self._trace.span(Track.ENGINE, "accept") as span:
                accepted = accept(self._acceptance, tree, nodes, logits, request)
                span.note(accepted=len(accepted.path) - 1)
            self._pair.commit(tree, accepted.path)
            round_.witness(tree, nodes, logits, accepted)
            del logits  # the plan has no room for them beside those of the next pass
            rerooted = round_.reroot(tree, accepted, transcript.is_finished)
            if self._grower and not self.settings.keep_growth:
                self._grower.rest()
                rerooted = rerooted.bare()
            outcome = round_.outcome(tree, nodes, accepted, rerooted)
            tally.outcomes.append(outcome)
            self._adapt(outcome, round_)
            yield from accepted.events
            if failure := accepted.failure or round_.failure:
                raise failure
            tree = rerooted

    def _begin(self, tree: TokenTree, room: int, tally: Tally) -> RoundInProgress:
        """Decide whether this round drafts, and how far it may go."""
        self._pair.check_cancelled()
        begun = self._clock()
        plan = self._planner.plan()
        grower = self._choose_grower(tree, plan, tally)
        if grower is not None:
            self._pair.catch_up(grower)
        reading_s = self._clock() - begun
        info = self._target.info
        deepest = room - 1  # a token that stands deeper would be past the text's end
        n_free = info.n_ctx - len(self._pair.committed)
        depth = self.settings.max_depth or self._max_nodes - 1
        limits = Limits(
            max_nodes=min(self._max_nodes, n_free),
            max_branches=info.max_branches,
            max_depth=min(depth, deepest),
            n_hidden=self._planner.n_hidden if grower else 0,
            least_confidence=self._planner.least_confidence(plan) if grower else 0.0,
        )
        # A path ends with a token of the target's own: twice the depth and one is in reach beside.
        beside = Limits(
            max_nodes=tree.capacity,
            max_branches=info.max_branches,
            max_depth=min(2 * depth + 1, deepest),
        )
        return RoundInProgress(
            pair=self._pair,
            grower=grower,
            pacer=self._pacer,
            planner=self._planner,
            plan=plan,
            limits=limits,
            limits_beside=beside,
            begun=begun,
            guesses_before=grower.n_guesses if grower else 0,
            draft_s=reading_s,
            reading_s=reading_s,
        )

    def _new_planner(self, draft: LanguageModel | None) -> RoundPlanner:
        info = self._target.info
        share = draft.info.size_bytes / info.size_bytes if draft and info.size_bytes else 0.0
        return RoundPlanner(
            curve=PassCurve(used_share=info.used_share),
            stop_rule=self.settings.new_stop_rule(),
            may_step_aside=self.settings.step_aside,
            may_overlap=self.settings.overlap,
            draft_share=share,
            max_rows=self._max_nodes,
        )

    def _after_prompt(self, request: ActiveRequest, reused: int, report: PassReport | None) -> None:
        """Let the drafters read what the target has read of a prompt, where that pays."""
        grower, pair = self._grower, self._pair
        if grower is None:
            return
        n_unread = len(pair.committed) - min(reused, self._n_drafted)
        planner = self._planner.begin_text(n_unread, request.transcript.room)
        if report is not None:
            planner = self._memory.see_prompt(report, planner.observe_prompt(report))
        if planner.plan().guesses:
            grower.prepare(pair.committed, request.prompt[-1])
            begun = pair.clock()
            pair.catch_up(grower)
            planner = planner.observe_reading(pair.clock() - begun)
        self._planner = planner

    @property
    def _n_drafted(self) -> int:
        """Committed tokens that the drafters have read."""
        return len(self._pair.committed) - self._planner.unread

    def _choose_grower(self, tree: TokenTree, plan: RoundPlan, tally: Tally) -> TreeGrower | None:
        """Whatever guesses; None if nothing can follow the text or it costs more than it brings."""
        grower = self._grower
        if grower is None:
            return None
        n_committed = len(self._pair.committed)
        for source, reason in grower.prepare(self._pair.committed, int(tree.token[ROOT])):
            tally.note(
                f"the {source} could not follow after {n_committed} tokens ({reason}): "
                "the target went on without it",
                subject=source,
            )
        if grower.is_ready and plan.guesses:
            return grower
        grower.rest()
        return None

    def _adapt(self, outcome: RoundOutcome, round_: RoundInProgress) -> None:
        """Let every rule that learns see the round."""
        if self._trace.is_on:
            record_round(self._trace, outcome, round_)
            self._trace.flush()
        if self._grower is not None:
            self._memory.see_round(outcome.bytes_read, outcome.read_s)
            self._planner = self._planner.observe(outcome)

    def _check_idle(self) -> None:
        if self._is_closed:
            raise UsageError("the engine is closed")
        if self._pair.running is not None:
            raise UsageError("the engine runs one generation at a time: finish or close the other")
