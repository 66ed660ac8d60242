"""The speculative loop: grow, verify, accept, commit, re-root, adapt, yield.

It puts the rules in order and keeps both models' KV caches a transaction. It knows models only
through the port, and no rule from the inside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence

from edgespec.concurrency.owning import Closeable
from edgespec.engine.acceptance import accept
from edgespec.engine.admission import admit, obstacle
from edgespec.engine.circumstances import Circumstances
from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.forced import hang_forced
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.lineup import line_up
from edgespec.engine.drafting.remembering import Learnt, Memory, renewed
from edgespec.engine.outcome import RoundOutcome, Tally
from edgespec.engine.pacer import EVERYTHING, Limits, LinearPacer, Pacer
from edgespec.engine.pair import Pair
from edgespec.engine.prompt import read_prompt, read_tail
from edgespec.engine.request import Keeper, Request
from edgespec.engine.round import RoundInProgress, record_round
from edgespec.engine.sampling import Constraint, SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.engine.strategy import Controller, Strategy, drafting_is_free
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
        self._pacers: dict[Strategy, Pacer] = {
            Strategy.TREE: self.settings.new_pacer() if target.info.tree_capable else LinearPacer(),
            Strategy.LINE: LinearPacer(),
        }
        self._fallback = self.settings.new_fallback().for_target(target.info)
        self._acceptance = self.settings.new_acceptance()
        self._draft_bytes = draft.info.size_bytes if draft is not None else 0
        self._controller = self._new_controller()
        threads = (target.info.n_threads, draft.info.n_threads if draft is not None else 0)
        self._circumstances = Circumstances.of(target.paging(), threads, self.settings.unusual)
        self._memory = memory
        self._learnt: Learnt = {}
        """By an earlier run."""
        self._is_new = True
        """Whether no round has shown yet what strategies cost."""
        self._recall()
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

    def cancel(self, request: Request | None = None) -> None:
        """From any thread: end `request`, or the one that runs; its reason is "cancelled"."""
        with self._turning:
            request = request or self._pair.running
            if request is not None:
                request.cancelled.set()
            if request is self._pair.running:
                self._pair.cancel()

    def request(
        self,
        prompt_tokens: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
        constraint: Constraint | None = None,
        n_logprobs: int | None = None,
        keeper: Keeper | None = None,
    ) -> Request:
        """What `run` takes. Without `max_tokens` the text may fill the context.

        `constraint` says which tokens may come; with `n_logprobs` each token is told with its log
        probability and those of so many others. Raises UsageError for what cannot be meant.
        """
        return admit(
            self._target,
            prompt_tokens,
            sampling,
            max_tokens,
            stop,
            progress,
            constraint,
            n_logprobs,
            keeper,
        )

    @property
    def committed(self) -> Sequence[int]:
        """Tokens whose keys and values the target holds, of the latest text."""
        return tuple(self._pair.committed)

    @property
    def preferred(self) -> Strategy:
        """How rounds guess, but for trials of other strategies."""
        return self._controller.preferred

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

    def run(self, request: Request) -> Generator[TokenEvent, None, None]:
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
                    drafts = self._strategy is not Strategy.NONE
                    report = read_prompt(self._pair, request, drafts)
                    if report is not None:
                        self._fallback = self._fallback.observe_prompt(report)
                        self._see_reads(report)
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
                if request.tally.outcomes:
                    self._keep()

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
        request = self.request(prompt_tokens, sampling, max_tokens, stop, progress)
        return self._whole(request)

    def _whole(self, request: Request) -> Generator[TokenEvent, None, GenerationResult]:
        before = self._target.paging()
        yield from self.run(request)
        return request.result(self._target.paging().since(before))

    def _rounds(self, request: Request) -> Generator[TokenEvent, None, None]:
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
            logits = round_.verify(tree, nodes, self.settings.overlap)
            with self._trace.span(Track.ENGINE, "accept") as span:
                accepted = accept(self._acceptance, tree, nodes, logits, request)
                span.note(accepted=len(accepted.path) - 1)
            self._pair.commit(tree, accepted.path)
            round_.witness(tree, nodes, logits)
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
        grower = self._choose_grower(tree, tally)
        if grower is not None:
            self._pair.catch_up(grower)
        info = self._target.info
        deepest = room - 1  # a token that stands deeper would be past the text's end
        n_free = info.n_ctx - len(self._pair.committed)
        depth = self.settings.max_depth or self._max_nodes - 1
        limits = Limits(
            max_nodes=min(self._max_nodes, n_free),
            max_branches=info.max_branches,
            max_depth=min(depth, deepest),
            worth=self._fallback.worth_growing() if grower else EVERYTHING,
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
            pacer=self._pacers.get(self._strategy, self._pacers[Strategy.TREE]),
            fallback=self._fallback,
            limits=limits,
            limits_beside=beside,
            begun=begun,
            guesses_before=grower.n_guesses if grower else 0,
            draft_s=self._clock() - begun,
        )

    @property
    def _strategy(self) -> Strategy:
        """How the next round guesses."""
        return self._controller.strategy if self.settings.step_aside else Strategy.TREE

    def _new_controller(self) -> Controller:
        line_is_the_tree = isinstance(self._pacers[Strategy.TREE], LinearPacer)
        strategies = [Strategy.TREE, Strategy.NONE, Strategy.LINE][: 2 if line_is_the_tree else 3]
        if self._pair.is_paged:
            return Controller.for_paged_target(*strategies)
        size_bytes, draft = self._target.info.size_bytes, self._draft_bytes
        share = draft / size_bytes if size_bytes else 0.0
        return Controller.for_resident_target(*strategies, draft_share=share)

    def _recall(self) -> None:
        """Begin with what an earlier run left."""
        if self._grower is not None and self._memory is not None:
            self._learnt = self._memory.recall()
            self._grower.recall(self._learnt)
            self._recall_costs()

    def _recall_costs(self) -> None:
        """What costs are like here is not known before storage has shown its speed."""
        if self._circumstances.are_known and self._is_new:
            strategies, passes = self._places
            self._controller = self._controller.recalled(self._learnt.get(strategies, {}))
            self._fallback = self._fallback.recalled(self._learnt.get(passes, {}))

    def _see_reads(self, report: PassReport) -> None:
        """Of a prompt's pass or of several."""
        seen = self._circumstances.with_reads(report.bytes_read, report.read_s)
        self._circumstances = seen
        self._recall_costs()

    def _keep(self) -> None:
        """Leave what was learnt to the next run."""
        if self._grower is not None and self._memory is not None:
            learnt = self._grower.learnt()
            if self._circumstances.are_known:
                learnt_here = (self._controller.numbers(), self._fallback.numbers())
                learnt = renewed(learnt, dict(zip(self._places, learnt_here, strict=True)))
            self._memory.keep(learnt)

    @property
    def _places(self) -> tuple[str, str]:
        """What was learnt of strategies, and of passes, holds under the same circumstances only."""
        here = self._circumstances.name
        return f"strategy@{here}", f"passes@{here}"

    def _choose_grower(self, tree: TokenTree, tally: Tally) -> TreeGrower | None:
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
        if grower.is_ready and self._strategy is not Strategy.NONE:
            return grower
        grower.rest()
        return None

    def _adapt(self, outcome: RoundOutcome, round_: RoundInProgress) -> None:
        """Let every rule that learns see the round."""
        if self._trace.is_on:
            record_round(self._trace, outcome, round_, self._strategy)
            self._trace.flush()
        if self._grower is None:
            return
        self._is_new = False
        reads = self._circumstances.with_reads(outcome.bytes_read, outcome.read_s)
        self._circumstances = reads
        self._fallback = self._fallback.observe(outcome)
        if round_.grower or self._strategy is Strategy.NONE:
            self._controller = self._controller.observe(
                outcome.wall_s, outcome.n_tokens, drafting_is_free(outcome), outcome.read_s
            )

    def _check_idle(self) -> None:
        if self._is_closed:
            raise UsageError("the engine is closed")
        if self._pair.running is not None:
            raise UsageError("the engine runs one generation at a time: finish or close the other")
