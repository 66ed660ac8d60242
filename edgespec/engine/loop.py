"""The speculative loop: grow, verify, accept, commit, re-root, adapt, yield.

It puts the rules in order and keeps both models' KV caches a transaction. It knows models only
through the port, and no rule from the inside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from edgespec.concurrency.owning import Owner
from edgespec.concurrency.worker import Running, Worker
from edgespec.engine.acceptance import Accepted
from edgespec.engine.admission import check_prompt, obstacle
from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.forced import hang_forced
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.lookup import LookupDrafter
from edgespec.engine.drafting.model import ModelDrafter
from edgespec.engine.drafting.recycling import RecyclingDrafter
from edgespec.engine.drafting.remembering import Memory
from edgespec.engine.fallback import RoundSoFar
from edgespec.engine.gating import OverlapGate
from edgespec.engine.outcome import RoundOutcome, Tally
from edgespec.engine.pacer import Limits, LinearPacer, Pacer
from edgespec.engine.request import Request
from edgespec.engine.round import RoundInProgress, common_length, record_round
from edgespec.engine.sampling import Constraint, Sampler, SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.engine.strategy import Controller, Strategy, drafting_is_free
from edgespec.engine.transcript import Transcript
from edgespec.errors import Cancelled, UsageError
from edgespec.ports import LanguageModel, Progress
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.tree import ROOT, TokenTree
from edgespec.values import FinishReason, GenerationResult, TokenEvent

__all__ = ["Engine", "EngineSettings"]

PROVISIONAL_FACTOR = 8
"""A tree holds this many times the nodes of one pass: room to grow beside it."""
SHORT_PASS_S = 0.01
"""A resident target's pass that is shorter, to go by those before, runs in the caller's thread: it
keeps nobody's Ctrl-C waiting, and to wake another thread takes a tenth of a millisecond, and far
longer on a busy machine. A paged one calls back, and an exception of a signal handler that breaks
into a callback is lost there."""


class Engine(Owner):
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
        self._is_paged = target.paging().segments > 0
        self._pacers: dict[Strategy, Pacer] = {
            Strategy.TREE: self.settings.new_pacer() if target.info.tree_capable else LinearPacer(),
            Strategy.LINE: LinearPacer(),
        }
        self._fallback = self.settings.new_fallback().for_target(target.info)
        self._acceptance = self.settings.new_acceptance()
        self._gate = OverlapGate()
        self._usual_pass_s = 0.0
        self._controller = self._new_controller(target)
        self._obstacle = obstacle(target, draft)
        self._grower = self._new_grower(draft, drafters)
        self._memory = memory
        if self._grower is not None and memory is not None:
            self._grower.recall(memory.recall())
        self._committed: list[int] = []
        """Tokens of the target's committed prefix; the draft's is a prefix of it."""
        self._clock = clock
        self._trace = trace
        self._worker = Worker()
        self._running: Request | None = None
        self._turning = threading.RLock()
        """Held while a request begins, ends or is cancelled: what is meant for one of them may not
        stop the models of the next."""
        self._is_closed = False

    def close(self) -> None:
        """End the engine's thread. Idempotent; close a running generation first."""
        self._is_closed = True
        self._worker.close()

    def cancel(self, request: Request | None = None) -> None:
        """From any thread: end `request`, or the one that runs; its reason is "cancelled"."""
        with self._turning:
            request = request or self._running
            if request is not None:
                request.cancelled.set()
            if request is self._running:
                self._target.cancel()
                if self._grower is not None:
                    self._grower.cancel()

    def request(
        self,
        prompt_tokens: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
        constraint: Constraint | None = None,
        n_logprobs: int | None = None,
    ) -> Request:
        """What `run` takes. Without `max_tokens` the text may fill the context.

        `constraint` says which tokens may come; with `n_logprobs` each token is told with its log
        probability and those of so many others. Raises UsageError for what cannot be meant.
        """
        check_prompt(prompt_tokens, self._target)
        sampling.check_vocabulary(self._target.info.n_vocab)
        if max_tokens is not None and max_tokens < 0:
            raise UsageError(f"max_tokens must be >= 0, not {max_tokens}")
        # The text's last token is not evaluated, so it may stand one place past the context.
        limit = self._target.info.n_ctx - len(prompt_tokens) + 1
        limit_reason: FinishReason = "context"
        if max_tokens is not None and max_tokens <= limit:
            limit, limit_reason = max_tokens, "length"
        return Request(
            prompt=tuple(prompt_tokens),
            sampler=Sampler(sampling, prompt_tokens, constraint, n_logprobs),
            transcript=Transcript(self._target.vocabulary, stop, limit, limit_reason),
            progress=progress,
        )

    def run(self, request: Request) -> Generator[TokenEvent, None, None]:
        """Yield the tokens of a request. When it ends, however, no model holds provisional KV.

        Errors of the models come out of the generator, after which the engine can be used again;
        neither they, nor Ctrl-C, nor closing the generator leave a model at work.
        """
        self._check_idle()
        with self._turning:
            self._running = request
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
                    self._read_prompt(request)
                    yield from self._rounds(request)
        except Cancelled:
            request.transcript.cancel()
        finally:
            try:
                self._drop_provisional()
            finally:
                with self._turning:
                    self._running = None
                self._trace.flush()
                if self._grower is not None and self._memory and request.tally.outcomes:
                    self._memory.keep(self._grower.learnt())

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
        sampler, transcript, tally = request.sampler, request.transcript, request.tally
        eog_tokens = self._target.vocabulary.eog_tokens
        root_token = request.prompt[-1]
        if len(self._committed) < len(request.prompt) - 1:
            event = self._read_tail(request)
            root_token = event.token
            yield event
        tree = TokenTree(root_token, PROVISIONAL_FACTOR * self.settings.max_nodes)
        while not transcript.is_finished:
            round_ = self._begin(tree, transcript.room, tally)
            if round_.grower is None:
                tree = tree.bare()
            hang_forced(tree, sampler, round_.limits)
            if round_.grower is not None:
                self._grow(tree, round_.grower, round_)
            nodes = self._select(tree, round_)
            logits = self._verify(tree, nodes, round_)
            with self._trace.span(Track.ENGINE, "accept") as span:
                accepted = self._acceptance.accept(tree, nodes, logits, sampler, eog_tokens)
                span.note(accepted=len(accepted.path) - 1)
            stood = accepted.tokens(tree)
            events = transcript.extend(stood, len(tally.outcomes), sampler.logprobs)
            self._commit(tree, accepted)
            if round_.grower is not None:
                self._witness(tree, nodes, logits, round_.grower, round_)
            rerooted = self._reroot(tree, accepted, round_, transcript.is_finished)
            if self._grower and not self.settings.keep_growth:
                self._grower.rest()
                rerooted = rerooted.bare()
            outcome = round_.outcome(
                tree,
                nodes,
                accepted,
                rerooted,
                len(events),
                self._target.last_report,
                self._clock(),
            )
            tally.outcomes.append(outcome)
            self._adapt(outcome, round_)
            yield from events
            tree = rerooted

    def _read_prompt(self, request: Request) -> None:
        """Prefill all but the prompt's last token, and no more than differs from the last call.

        What goes on from there and fits into one pass is left to `_read_tail`.
        """
        self._check_cancelled()
        prompt = list(request.prompt)
        begun = self._clock()
        reused = common_length(self._committed, prompt[:-1])
        if reused < len(self._committed) and not self._target.info.tree_capable:
            reused = 0  # recurrent state cannot be rewound by a few tokens
        self._target.truncate(reused)
        del self._committed[reused:]
        unread = prompt[reused:-1]
        if unread and not (reused and self._fits_a_pass(len(unread) + 1)):
            prefill = partial(self._target.prefill, unread, request.progress)
            self._worker.run(prefill, self._target.cancel, self._check_cancelled)
            self._committed += unread
            self._gate = self._gate.observe(self._target.last_report)
        if self._grower is not None:
            self._grower.rewind(reused)
            if self._way is not Strategy.NONE:
                self._grower.prepare(self._committed, prompt[-1])
                self._catch_up(self._grower)
        end = self._clock()
        request.tally.prompt_s = end - begun
        request.tally.reused_tokens = reused
        self._trace.add(Track.ENGINE, "prompt", begun, end, tokens=len(prompt), reused=reused)

    def _fits_a_pass(self, n_tokens: int) -> bool:
        """Whether one pass may both read so many tokens and say what follows them."""
        info = self._target.info
        return info.tree_capable and n_tokens <= info.max_nodes

    def _read_tail(self, request: Request) -> TokenEvent:
        """Read what is left of the prompt, a branch of a tree, in the pass of the first token.

        The next turn of a conversation costs one pass so, instead of a prefill and one.
        """
        begun = self._clock()
        tail = request.prompt[len(self._committed) :]
        tree = TokenTree(tail[0], len(tail))
        branch = [ROOT]
        for token in tail[1:]:
            branch.append(tree.add(branch[-1], token, confidence=1.0))
        evaluate = partial(self._target.evaluate, tree, branch)
        with self._trace.span(Track.ENGINE, "verify").note(nodes=len(branch)):
            logits = self._worker.run(evaluate, self._target.cancel, self._check_cancelled)
        token = request.sampler.pick(logits[-1])
        (event,) = request.transcript.extend([token], 0, request.sampler.logprobs)
        self._target.commit(tree, branch)
        self._committed += tail
        self._gate = self._gate.observe(self._target.last_report)
        request.tally.read_first_token(self._clock() - begun)
        return event

    def _catch_up(self, grower: TreeGrower) -> None:
        """Let drafters read what was committed without them: a prompt, rounds that they sat out."""
        if grower.is_behind(self._committed):
            with self._trace.span(Track.ENGINE, "catch up"):
                catch_up = partial(grower.catch_up, self._committed)
                self._worker.run(catch_up, grower.cancel, self._check_cancelled)

    def _begin(self, tree: TokenTree, room: int, tally: Tally) -> RoundInProgress:
        """Decide whether this round drafts, and how far it may go."""
        self._check_cancelled()
        begun = self._clock()
        deepest = room - 1
        grower = self._choose_grower(tree, tally)
        pacer = self._pacers.get(self._way, self._pacers[Strategy.TREE])
        if grower is not None:
            self._catch_up(grower)
        info = self._target.info
        n_free = info.n_ctx - len(self._committed)
        limits = Limits(
            max_nodes=min(self.settings.max_nodes, info.max_nodes, n_free),
            max_branches=info.max_branches,
            max_depth=min(self.settings.depth, deepest),
        )
        guesses_before = grower.n_guesses if grower else 0
        draft_s = self._clock() - begun
        return RoundInProgress(
            grower, pacer, limits, deepest, begun, guesses_before, draft_s=draft_s
        )

    @property
    def _way(self) -> Strategy:
        """How the next round guesses."""
        return self._controller.way if self.settings.step_aside else Strategy.TREE

    def _new_controller(self, target: LanguageModel) -> Controller:
        line_is_the_tree = isinstance(self._pacers[Strategy.TREE], LinearPacer)
        ways = (
            [Strategy.TREE, Strategy.NONE]
            if line_is_the_tree
            else [Strategy.TREE, Strategy.NONE, Strategy.LINE]
        )
        if self._is_paged:
            return Controller.for_paged_target(*ways)
        return Controller.for_resident_target(*ways)

    def _new_grower(
        self, draft: LanguageModel | None, drafters: Sequence[Drafter]
    ) -> TreeGrower | None:
        """Whatever guesses, the draft model first."""
        settings, info = self.settings, self._target.info
        if not info.verifies_guesses:
            return None
        eog_tokens = self._target.vocabulary.eog_tokens
        guessing = list(drafters)
        can_draft = draft is not None and self._obstacle is None
        if can_draft if settings.lookup is None else settings.lookup:
            guessing += [LookupDrafter(eog_tokens), RecyclingDrafter(eog_tokens)]
        if draft is not None and can_draft:
            model = ModelDrafter(
                draft,
                settings.n_candidates,
                settings.draft_temperature,
                info.n_vocab,
                eog_tokens,
            )
            guessing.insert(0, model)
        return TreeGrower(guessing) if guessing else None

    def _choose_grower(self, tree: TokenTree, tally: Tally) -> TreeGrower | None:
        """Whatever guesses; None if nothing can follow the text or it costs more than it brings."""
        grower = self._grower
        if grower is None:
            return None
        for source, reason in grower.prepare(self._committed, int(tree.token[ROOT])):
            tally.note(
                f"the {source} could not follow after {len(self._committed)} tokens ({reason}): "
                "the target went on without it"
            )
        if grower.is_ready and self._way is not Strategy.NONE:
            return grower
        grower.rest()
        return None

    def _grow(self, tree: TokenTree, grower: TreeGrower, round_: RoundInProgress) -> None:
        """Draft until the fallback rule fires or no growth within the limits is of use."""
        begun = self._clock()
        growing_s = 0.0
        grower.begin(tree, round_.pacer, round_.limits)
        while True:
            self._check_cancelled()
            open_nodes = grower.open_nodes(tree)
            so_far = RoundSoFar(tree, open_nodes, round_.draft_steps, growing_s)
            if self._fallback.fires(so_far):
                break
            if not self._step(tree, open_nodes, grower, round_, round_.limits, Track.ENGINE):
                break
            round_.draft_steps += 1
            growing_s = self._clock() - begun
        end = self._clock()
        round_.draft_s += end - begun
        self._trace.add(Track.ENGINE, "grow", begun, end, steps=round_.draft_steps)

    def _step(
        self,
        tree: TokenTree,
        open_nodes: Sequence[int],
        grower: TreeGrower,
        round_: RoundInProgress,
        limits: Limits,
        track: Track,
    ) -> bool:
        """One step of a drafter, recorded. False if nothing was to do, which is no step."""
        n_before = len(tree)
        with self._trace.span(track, "draft step") as span:
            grew = grower.step(tree, open_nodes, round_.pacer, limits)
            if not grew:
                span.forget()
            elif self._trace.is_on:
                best = float(tree.cumulative[list(open_nodes)].max())
                span.note(nodes=len(tree) - n_before, tree=len(tree), Tc=round(best, 6))
        return grew

    def _select(self, tree: TokenTree, round_: RoundInProgress) -> list[int]:
        """The nodes that are worth their place in the pass."""
        if len(tree) == 1:
            return [ROOT]
        so_far = RoundSoFar(tree, (), round_.draft_steps, round_.draft_s)
        n_worth = self._fallback.n_worth_verifying(so_far)
        limits = replace(round_.limits, max_nodes=min(round_.limits.max_nodes, n_worth))
        return round_.pacer.select(tree, limits)

    def _verify(self, tree: TokenTree, nodes: Sequence[int], round_: RoundInProgress) -> np.ndarray:
        """Logits [len(nodes), n_vocab] of one target pass, beside which the draft may go on."""
        grower = round_.grower if self.settings.overlap and self._gate.is_open else None
        with self._trace.span(Track.ENGINE, "verify").note(nodes=len(nodes)):
            is_short = 0 < self._usual_pass_s < SHORT_PASS_S
            if grower is None and is_short and not self._is_paged:
                return self._target.evaluate(tree, nodes)
            evaluate = partial(self._target.evaluate, tree, nodes)
            with self._worker.running(evaluate, self._target.cancel) as target_pass:
                if grower is not None:
                    self._grow_beside(tree, grower, round_, target_pass)
                return target_pass.result(self._check_cancelled)

    def _grow_beside(
        self,
        tree: TokenTree,
        grower: TreeGrower,
        round_: RoundInProgress,
        target_pass: Running[np.ndarray],
    ) -> None:
        """Grow the tree that is being verified, past what was selected, while the pass runs.

        What it adds is worth something if the accepted path leads there: the next round starts
        with it. A path ends with a token of the target's own, so twice the depth is in reach.
        """
        first_key = tree.next_key
        limits = Limits(
            max_nodes=tree.capacity,
            max_branches=round_.limits.max_branches,
            max_depth=min(2 * self.settings.depth + 1, round_.deepest),
        )
        while not target_pass.done:
            self._check_cancelled()
            open_nodes = grower.open_nodes(tree)
            if not self._step(tree, open_nodes, grower, round_, limits, Track.BESIDE):
                break
        round_.provisional = range(first_key, tree.next_key)

    def _commit(self, tree: TokenTree, accepted: Accepted) -> None:
        """Make the target's KV of the accepted path final."""
        with self._trace.span(Track.ENGINE, "commit"):
            self._target.commit(tree, accepted.path)
        self._committed += (int(tree.token[node]) for node in accepted.path)

    def _witness(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        logits: np.ndarray,
        grower: TreeGrower,
        round_: RoundInProgress,
    ) -> None:
        """Let the drafters see what the target said, also after guesses that do not stand."""
        begun = self._clock()
        grower.witness(tree, nodes, logits)
        round_.draft_s += self._clock() - begun

    def _reroot(
        self, tree: TokenTree, accepted: Accepted, round_: RoundInProgress, is_last: bool
    ) -> TokenTree:
        """The tree below the target's own token, with the growth that already hangs there."""
        grower = round_.grower
        if grower is None:
            return tree.after(accepted.next_token)
        end = accepted.path[-1]
        root = tree.child(end, accepted.next_token)
        if root is None:
            root = tree.add(end, accepted.next_token, confidence=1.0)
        if is_last:
            return tree.reroot(root)
        grower.prepare(self._committed, accepted.next_token)
        if not grower.is_ready:
            return tree.reroot(root)
        begun = self._clock()
        try:
            with self._trace.span(Track.ENGINE, "re-root"):
                return grower.follow(tree, accepted.path, root, round_.pacer)
        except Cancelled:
            # What was accepted stands and is still to be yielded; the next round ends the text.
            grower.rest()
            return tree.reroot(root).bare()
        finally:
            round_.draft_s += self._clock() - begun

    def _adapt(self, outcome: RoundOutcome, round_: RoundInProgress) -> None:
        """Let every rule that learns see the round."""
        # one pass that was held up says little of the next one
        pass_s = outcome.pass_s
        self._usual_pass_s = min(pass_s, 2 * self._usual_pass_s) if self._usual_pass_s else pass_s
        if self._trace.is_on:
            record_round(self._trace, outcome, round_, self._way)
            self._trace.flush()
        if self._grower is None:
            return
        self._fallback = self._fallback.observe(outcome)
        self._gate = self._gate.observe(self._target.last_report)
        if round_.grower or self._way is Strategy.NONE:
            self._controller = self._controller.observe(
                outcome.wall_s, outcome.n_tokens, drafting_is_free(outcome)
            )

    def _drop_provisional(self) -> None:
        """Leave both models with their committed prefix, whatever happened before."""
        self._target.truncate(min(len(self._committed), self._target.n_committed))
        del self._committed[self._target.n_committed :]
        if self._grower is not None:
            self._grower.rewind(len(self._committed))

    def _check_cancelled(self) -> None:
        if self._running is not None:
            self._running.check_cancelled()

    def _check_idle(self) -> None:
        if self._is_closed:
            raise UsageError("the engine is closed")
        if self._running is not None:
            raise UsageError("the engine runs one generation at a time: finish or close the other")
