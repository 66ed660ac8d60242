"""The speculative loop: grow, verify, accept, commit, re-root, adapt, yield.

It puts the rules in order and keeps the models' KV caches a transaction. A pass serves all texts at
work; one text is the case of one tree. It knows models only through the port, and no rule from the
inside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.concurrency.queueing import FairLock
from edgespec.concurrency.worker import Worker
from edgespec.engine.admission import admit, check_drafters, notes_on, obstacle
from edgespec.engine.decision import RoundPlanner
from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.lineup import line_up
from edgespec.engine.drafting.remembering import Memory
from edgespec.engine.drafting.trust import Trust
from edgespec.engine.forest import Forest, GrowingTree
from edgespec.engine.learning import Learning
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.pair import Pair
from edgespec.engine.passes import Passes
from edgespec.engine.places import choose_place
from edgespec.engine.request import ActiveRequest
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.engine.text import TextAtWork, cancelled_together
from edgespec.errors import Cancelled, UsageError
from edgespec.ports import LanguageModel, Progress
from edgespec.ports.text_request import TextRequest
from edgespec.ports.texts import PassPart, texts_of
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.values import GenerationResult, TokenEvent

__all__ = ["Engine", "EngineSettings"]


class Engine(Closeable):
    """Generates text with a target and, if there is one, a draft.

    The models are borrowed: closing the engine ends its threads and leaves them open. As many
    generations run at a time as the target holds texts; what the rules have learnt, and the KV of a
    common prefix, serve the next one.
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
        """`drafters` guess beside the draft model; of several texts they follow the first."""
        settings = settings or EngineSettings()
        check_drafters(settings, draft, drafters)
        reason = obstacle(target, draft)
        targets = texts_of(target)
        drafts = [] if draft is None or reason else texts_of(draft)
        trust = Trust()
        self._passes = Passes(target, clock, trace)
        self._pairs = []
        for text, (its_target, its_draft) in enumerate(
            zip_longest(targets, drafts[: len(targets)])
        ):
            others = () if text else drafters
            grower = line_up(its_target, its_draft, others, settings, trust)
            self._pairs.append(Pair(its_target, grower, self._passes, text))
        self._draft = draft
        self._draws = settings.draws_guesses
        """True if the acceptance rule needs all guesses verified that were drawn: no other text
        may take their rows."""
        grower = self._pairs[0].grower
        self._rules = settings.rules_for(target.info)
        self._learning = Learning(target, draft, grower, settings, memory)
        rule, n_places = self._rules.acceptance, len(self._pairs)
        self._notes = notes_on(reason, rule, grower is not None, n_places)
        self._texts: list[TextAtWork] = []
        """Texts at work, in the order of their beginnings."""
        self._n_begun = 0
        self._turning = threading.RLock()
        """Held while a request begins, ends or is cancelled, so that cancelling one cannot stop the
        models of the next."""
        self._driving = FairLock()
        """Held by whoever uses the models, where several texts are at work."""
        self._driver = Worker()
        """Where several texts are at work, passes are driven out of the callers' threads."""
        self._is_closed = False

    @property
    def n_texts(self) -> int:
        """Generations that can run at a time."""
        return 1 if self._draws else min(len(self._pairs), self._rules.max_nodes)

    def close(self) -> None:
        """End the engine's thread. Idempotent; close a running generation first."""
        self._is_closed = True
        close_all(self._driver.close, self._passes.close)

    def cancel(self, request: ActiveRequest | None = None) -> None:
        """From any thread: end `request`, or all that run; their reason is "cancelled"."""
        with self._turning:
            running = [text.request for text in self._texts]
            for each in running if request is None else [request]:
                each.cancelled.set()
            is_at_work = request is None or request in running
            if is_at_work and all(each.cancelled.is_set() for each in running):
                for pair in self._pairs:
                    pair.cancel()

    def admit(self, terms: TextRequest) -> ActiveRequest:
        """The request, ready for `run`. Raises UsageError if the target cannot serve it."""
        rule = self._rules.acceptance if self._pairs[0].grower is not None else None
        return admit(self._passes.target, terms, rule)

    def has_place_for(self, request: ActiveRequest) -> bool:
        """True if it can begin now. What keeps its prompt beyond the process is text 0's."""
        free = [pair for pair in self._pairs[: self.n_texts] if pair.running is None]
        return any(request.terms.keeper is None or pair.text == 0 for pair in free)

    @property
    def committed(self) -> Sequence[int]:
        """Tokens whose KV the target holds, of text 0."""
        return tuple(self._pairs[0].committed)

    @property
    def planner(self) -> RoundPlanner:
        """The round planner with all it has learnt so far."""
        return self._learning.planner

    def forget(self) -> None:
        """Leave the models without a text."""
        for pair in self._pairs:
            pair.rewind(0)

    @property
    def n_tiled(self) -> int:
        """Number of committed tokens that were computed in tiles."""
        return self._pairs[0].n_tiled

    def adopt(self, tokens: Sequence[int], n_tiled: int = 0) -> None:
        """Take `tokens` as committed: their KV was loaded into the target, that of a part into the
        draft; `n_tiled` of them were computed in tiles."""
        pair = self._pairs[0]
        pair.committed = list(tokens)
        pair.n_drafted = len(tokens)
        pair.n_tiled = n_tiled

    def run(self, request: ActiveRequest) -> Generator[TokenEvent, None, None]:
        """Yield the tokens of a request. However it ends, no model holds provisional KV then.

        Errors of the models come out of the generator, after the tokens accepted before them, and
        the engine can be used again; neither they, nor Ctrl-C, nor closing the generator leave a
        model at work. Several may be iterated at a time, each in a thread of its own.
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
                pair.grower.begin_text(request.sampler.params)
            text = TextAtWork(pair, request, self._rules, self._learning)
            self._texts.append(text)
            return text

    def _end(self, text: TextAtWork) -> None:
        with self._driving:
            try:
                text.pair.rewind(len(text.pair.committed))
            finally:
                with self._turning:
                    text.pair.running = None
                    self._texts.remove(text)
                self._passes.trace.flush()
                if text.request.tally.outcomes:
                    self._learning.keep()

    def _drive(self, text: TextAtWork) -> None:
        """Let a pass bring this text on. Whoever comes first serves all texts at work."""
        if len(self._pairs) == 1:
            self._advance()
            return
        with self._driving:
            if text.waits:
                self._driver.run(self._advance, text.request.cancelled.set)

    def _advance(self) -> None:
        """One pass, which verifies a tree of each text. A tree's root is the last token of the
        text: committed, and in no KV yet. What fails in one text is left to who takes its tokens.
        """
        texts = [text for text in self._texts if text.is_at_work]
        check = cancelled_together(texts)
        growths = self._prepare(texts)
        tails = self._tails(texts, len(growths))
        n_prompt_rows = sum(len(part.nodes) for part in tails)
        if growths:
            self._learning.share_pass(len(growths), n_prompt_rows)
        prepared = self._passes.clock()
        forest = Forest(growths, self._rules, self._learning.planner)
        try:
            forest.grow(self._passes.clock, check)
            self._end_failed(texts, forest)
            parts = tails + self._grown(forest, n_prompt_rows)
            if not parts:
                return
            n_rows = sum(len(part.nodes) for part in parts)
            logits = self._passes.evaluate(parts, forest.beside(n_rows, check), check)
            self._end_failed(texts, forest)
        except Cancelled:
            for text in texts:
                text.start_again()
            return
        except Exception as error:  # noqa: BLE001 - raised to everybody whose pass it was
            for text in texts:
                text.fail(error)
            return
        by_number = {text.pair.text: text for text in texts}
        outcomes = []
        for part in parts:
            text, its_logits = by_number[part.text], logits.pop(0)
            with text.alone():
                if text.growth is not None:
                    outcomes.append(self._accept(text, part.nodes, its_logits))
                elif text.tail is not None:
                    text.take_tail(part.tree, text.tail, its_logits)
        if not growths:
            report = self._passes.target.last_report
            self._learning.see_prompt(replace(report, passes=1, n_tokens=n_rows))
        elif len(outcomes) == len(growths):
            self._learning.see_round(forest.outcome(outcomes, self._passes.clock() - prepared))

    def _prepare(self, texts: Sequence[TextAtWork]) -> list[GrowingTree]:
        """Get texts ready for a pass; the trees of those whose prompts are read."""
        growing = [text for text in texts if text.is_growing]
        if growing:
            self._learning.serve(
                n_texts=len(growing),
                n_unread=sum(text.pair.n_unread for text in growing),
                room=sum(text.request.transcript.room for text in growing),
            )
        for text in texts:
            text.prepare(n_others=len(texts) - 1)
        return [text.growth for text in texts if text.growth is not None]

    @staticmethod
    def _end_failed(texts: Sequence[TextAtWork], forest: Forest) -> None:
        """End the texts whose drafters failed; the others go on."""
        for text in texts:
            if text.growth in forest.failed:
                text.fail(forest.failed[text.growth])

    def _tails(self, texts: Sequence[TextAtWork], n_trees: int) -> list[PassPart]:
        """Parts of a pass of `n_trees` trees that read rests of prompts."""
        tails = [text for text in texts if text.tail is not None]
        most = self._rules.max_nodes - n_trees
        branches = [text.tail.branch(max(1, most // len(tails))) for text in tails if text.tail]
        return [
            PassPart(text.pair.text, tree, range(len(tree)))
            for text, tree in zip(tails, branches, strict=True)
        ]

    @staticmethod
    def _grown(forest: Forest, n_prompt_rows: int) -> list[PassPart]:
        """Parts of a pass that verify the best nodes of all trees."""
        nodes = forest.select(n_further=n_prompt_rows)
        return [
            PassPart(growth.round.pair.text, growth.tree, its_nodes)
            for growth, its_nodes in zip(forest.growths, nodes, strict=True)
        ]

    def _accept(self, text: TextAtWork, nodes: Sequence[int], logits: np.ndarray) -> RoundOutcome:
        """Accept what the target agrees with, commit it, and re-root the tree there."""
        assert text.growth is not None
        round_, tree = text.growth.round, text.growth.tree
        transcript, tally = text.request.transcript, text.request.tally
        accepted = round_.accept(tree, nodes, logits, text.request)
        text.pair.commit(tree, accepted.path)
        if round_.grower is not None:
            text.pair.n_drafted = len(text.pair.committed)
        round_.witness(tree, nodes, logits, accepted)
        del logits  # the plan has no room for them beside those of the next pass
        text.tree = round_.reroot(tree, accepted, transcript.is_finished)
        outcome = round_.end(tree, nodes, accepted, text.tree)
        tally.outcomes.append(outcome)
        text.events += accepted.events
        if failure := accepted.failure or round_.failure:
            text.fail(failure)
        return outcome

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
        before = self._passes.target.paging()
        yield from self.run(request)
        return request.result(self._passes.target.paging().since(before))

    def _check_idle(self) -> None:
        if self._is_closed:
            raise UsageError("the engine is closed")
        if all(pair.running is not None for pair in self._pairs[: self.n_texts]):
            at_a_time = f"{self.n_texts} generations" if self.n_texts > 1 else "one generation"
            raise UsageError(f"the engine runs {at_a_time} at a time: finish or close the other")
