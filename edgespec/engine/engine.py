"""The engine and its loop: grow the trees, verify them in one pass of the target, accept, learn.

`step` is one pass for all texts. Knows models through their port, guesses through sources and rules
by their interfaces; `scheduler` says which texts are written, `text` knows one text's part.

Passes compute in the calling thread, but for those beside which guesses go on: a second thread that
computes gets OpenMP threads of its own, more than there are cores, and all of them then sleep at
every barrier.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from edgespec.concurrency.owning import Users, close_all
from edgespec.concurrency.worker import Running, Worker
from edgespec.engine import prompt_reading
from edgespec.engine.admission import admit, check_sources, notes_on, obstacle
from edgespec.engine.growth import Logits, TreeGrowth, check
from edgespec.engine.ledger import Deal
from edgespec.engine.outcome import RoundOutcome, surest
from edgespec.engine.settings import EngineSettings
from edgespec.engine.slot import Slot
from edgespec.engine.sources.line_up import line_up
from edgespec.engine.sources.mixer import Mixer
from edgespec.engine.sources.source import Source
from edgespec.engine.state_store import KeptLedger, StateStore
from edgespec.engine.text import Text
from edgespec.errors import SessionClosed
from edgespec.pool import Pool
from edgespec.ports import LanguageModel, PassPart
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.settings.rule_names import Keeps
from edgespec.state.prefix_cache import SlotPrefixes
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.values import SourceStats


def nothing() -> None:
    """Release of an engine whose models are borrowed."""


class Engine(TreeGrowth):
    """Generates text with a target and an optional draft, in a thread of its own.

    As many generations run at a time as the target holds texts; others wait in line. Learnt state
    and the KV of common prefixes are reused by later generations. `close` ends the thread.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None = None,
        settings: EngineSettings | None = None,
        clock: Callable[[], float] = time.perf_counter,
        trace: Trace = OFF,
        sources: Sequence[Source] = (),
        state_store: StateStore | None = None,
        release: Callable[[], None] = nothing,
        n_grammars: int | None = None,
        name: str = "the engine",
        prefixes: Callable[[int], SlotPrefixes] | None = None,
    ) -> None:
        """`sources` guess in addition to the draft model.

        The models are borrowed, unless `release` frees them at the end. At most `n_grammars`
        requests with grammars run at a time. `name` is the subject of error messages. `prefixes`
        says where the texts of a slot are stored.
        """
        settings = settings or EngineSettings()
        check_sources(settings, draft, sources)
        reason = obstacle(target, draft)
        if not reason and draft is not None and draft.info.reads_features:
            target.give_features(draft.info.feature_layers, draft.take_features)
        self.target, self.trace, self.settings = target, trace, settings
        self.acceptance, self.pacer = settings.acceptance_rule, settings.new_pacer(target.info)
        self.limits = settings.limits_for(target.info)
        self.sources = line_up(target, None if reason else draft, sources, settings)
        self.mixer, self.pool, self.worker = Mixer(), Pool(), Worker()
        draft_info = draft.info if draft is not None else None
        store = state_store if self.sources else None
        self.ledger = KeptLedger(target, draft_info, self.mixer, settings, store)
        n_slots = min(settings.n_texts(target.info), self.limits.max_nodes)
        places = (prefixes(n) if prefixes is not None else None for n in range(n_slots))
        slots = [Slot(target, n, self.sources, place) for n, place in enumerate(places)]
        guesses = bool(self.sources)
        self._notes = notes_on(reason, self.acceptance, guesses, target.info.n_slots)
        super().__init__(
            slots,
            clock,
            Users(name, SessionClosed),
            n_slots if n_grammars is None else n_grammars,
            partial(close_all, self.worker.close, release),
        )

    def admit(self, terms: TextRequest) -> Text:
        """Prepare a request, whose tokens a `Generation` asks for. Raises UsageError if the target
        cannot serve it."""
        rule = self.acceptance if self.sources else None
        with self._users.use():
            text = admit(self.target, terms, rule, self.settings.n_keep)
        for note in self._notes:
            text.tally.note(note)
        return text

    def step(self, texts: Sequence[Text]) -> None:
        """One pass over the target's weights: prepare, guess, verify, accept, learn."""
        pass_ = RoundOutcome(n_texts=0)
        self.pool.pack()
        for text in texts:
            text.begun_s = self.clock()
            with text.ending_on_error():
                text.prepare(self.pool)
        reads, max_nodes = prompt_reading.next_parts(self, texts)
        growing = [text for text in texts if text.is_growing and not text.events]
        deal = self._deal(growing, sum(part.n_rows for part in reads), max_nodes)
        for text in growing:
            with text.ending_on_error():
                self._ready(text, deal, len(texts) - 1)
        begun_s = self.clock()
        self.grow(growing, deal, pass_)
        parts = reads + self.trees(growing, deal, pass_, max_nodes)
        if not parts:
            return
        n_rows = sum(part.n_rows for part in parts)
        hides = bool(growing) and deal.hides(n_rows)
        beside = partial(self.grow, growing, deal, pass_) if hides else None
        logits = self._verify(parts, texts, None if self.pool.draws else beside)
        by_number = {text.slot.number: text for text in texts}
        for part in parts:
            text, its_logits = by_number[part.slot], logits.pop(0)
            with text.ending_on_error():
                if text not in growing:
                    prompt_reading.take(self, text, part, its_logits)
                elif text.is_at_work:
                    self._accept(text, part.nodes, its_logits, pass_)
        if self.sources and growing:
            pass_.n_rows = max(n_rows, pass_.report.n_tokens)
            pass_.wall_s = self.clock() - begun_s + pass_.reading_s
            pass_.guessed = pass_.verified > 0 or pass_.draft_steps > 0
            if pass_.n_texts == len(growing):
                self.ledger.see(deal, pass_)
        elif self.sources:
            report = replace(self.target.last_report, passes=1, n_tokens=n_rows)
            self.ledger.see_prompt(report, None)

    # Before the pass

    def _deal(self, texts: Sequence[Text], n_prompt_rows: int, max_nodes: int) -> Deal:
        """Terms of the next pass for guesses."""
        n_unread = sum(s.n_unread(text) for text in texts for s in self.sources if s.serves(text))
        room = sum(text.transcript.room for text in texts)
        return self.ledger.deal(max(1, len(texts)), n_unread, room, max_nodes, n_prompt_rows)

    def _ready(self, text: Text, deal: Deal, n_others: int) -> None:
        """Begin a round of a text: its limits, and the sources that guess in it, which read what
        they have not read."""
        text.check_cancelled()
        text.outcome, text.beside, text.begun_s = RoundOutcome(), range(0), self.clock()
        n_free = self.target.info.n_ctx - len(text.slot.committed)
        text.limits = self.limits.before_pass(n_free, text.transcript.room, n_others)
        text.sources = []
        for source in self.sources:
            if not source.serves(text):
                continue
            reason = source.obstacle(text)
            if reason is not None:
                n_committed = len(text.slot.committed)
                text.tally.note(
                    f"the {source.name} could not follow after {n_committed} tokens ({reason}): "
                    "the target went on without it",
                    subject=source.name,
                )
            if reason is None and (source.is_free or deal.drafts):
                source.read(text)
                text.sources.append(source)
            else:
                source.rest(text)
        if not text.sources:
            self.pool.bare(text.slot.number)
        read_s = self.clock()
        text.outcome.reading_s = read_s - text.begun_s
        if text.tally.outcomes:
            text.outcome.draft_s = text.outcome.reading_s
        else:  # the draft's reading of the prompt is a part of the prompt's time
            text.charge(read_s - text.begun_s, gave_token=False)
            text.begun_s = read_s

    # The pass

    def _verify(
        self,
        parts: Sequence[PassPart],
        texts: Sequence[Text],
        beside: Callable[[Running[Logits]], None] | None,
    ) -> Logits:
        """Make one pass and return its logits; `beside` runs during the pass, which is then made in
        a worker thread."""
        n_rows = sum(part.n_rows for part in parts)
        with self.trace.span(Track.ENGINE, "verify").note(nodes=n_rows):
            if beside is None:
                logits = self.target.evaluate(parts)
            else:
                evaluate = partial(self.target.evaluate, parts)
                with self.worker.running(evaluate, self.target.cancel) as running:
                    beside(running)
                    logits = running.result(partial(check, texts))
        pass_s, usual_s = self.target.last_report.wall_s, self.usual_pass_s
        self.usual_pass_s = min(pass_s, 2 * usual_s) if usual_s else pass_s
        return logits

    # After the pass

    def _accept(
        self, text: Text, nodes: Sequence[int], logits: np.ndarray, pass_: RoundOutcome
    ) -> None:
        """Accept guesses, commit them, and re-root the tree at the target's own token."""
        pool, outcome = self.pool, text.outcome
        with self.trace.span(Track.ENGINE, "accept") as span:
            n_before = len(text.events)
            path = text.accept(self.acceptance, pool, nodes, logits)
            tokens = [event.token for event in text.events[n_before:]]
            span.note(accepted=len(path) - 1)
        begun_s = self.clock()
        for source in text.sources:
            source.learn(pool, text, nodes, logits)
        del logits  # the memory plan has room for the logits of one pass
        learning_s = self.clock() - begun_s
        self._measure(text, nodes, path, tokens)
        with self.trace.span(Track.ENGINE, "commit"):
            text.slot.commit(pool, path)
        begun_s = self.clock()
        if not text.transcript.is_finished:
            with self.trace.span(Track.ENGINE, "re-root"):
                kept = self._follow(text, path, tokens[-1])  # may move the pool's arrays
            kept_keys = pool.key[kept].tolist()
            outcome.provisional_kept = sum(key in text.beside for key in kept_keys)
        outcome.draft_s += learning_s + self.clock() - begun_s
        outcome.wall_s = self.clock() - text.begun_s
        text.tally.outcomes.append(outcome)
        pass_.add(outcome)
        self._trace_round(text)

    def _follow(self, text: Text, path: Sequence[int], token: int) -> list[int]:
        """Re-root the tree of a text at `token`, which the target picked after `path`; returns the
        nodes that stay.

        Updates the calibration from the path, and adds guesses that were too improbable below the
        old root but are not below the new one.
        """
        pool = self.pool
        root = pool.child(path[-1], token)
        if root is None:
            root = pool.add(path[-1], token)
        for node, picked in pairwise([*path, root]):
            self.mixer.observe(self.opinions(node, text), int(pool.token[picked]))
        for source in text.sources:
            try:
                source.follow(pool, text, path, root)
            except Exception as error:  # noqa: BLE001 - raised after the accepted tokens
                text.fail(error)
        kept = pool.follow(root)
        if text.is_at_work:
            for node in kept:
                self.hang(node, text)
        return kept

    def _measure(
        self, text: Text, nodes: Sequence[int], path: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Measure the pass over `nodes` of a text, and tell the stop rule."""
        pool, outcome = self.pool, text.outcome
        outcome.report = self.target.last_report
        outcome.n_tokens, outcome.verified = len(tokens), len(nodes) - 1
        outcome.accepted = len(path) - 1
        if not text.sources and len(nodes) == 1:
            return
        outcome.guessed = True
        outcome.claimed, outcome.right = surest(pool, path, tokens)
        root = path[0]
        verified = Counter(pool.source[node] for node in nodes if node != root)
        accepted = Counter(pool.source[node] for node in path[1:])
        outcome.sources = [SourceStats(name, n, accepted[name]) for name, n in verified.items()]
        if (rule := self.ledger.stop_rule) is not None:
            self.ledger.stop_rule = rule.observe(pool, nodes, path, tokens)

    # Texts begin and end

    def begin(self, text: Text) -> None:
        """Begin a text in its slot."""
        is_draw = self.acceptance.keeps is Keeps.DRAWS
        text.foresight = text.sampler if is_draw else Sampler(SamplingParams())
        text.paging_before = self.target.paging()
        for source in self.sources:
            if source.serves(text):
                source.begin(text)
        if self.sources:
            is_beside = any(not slot.is_free for slot in self.slots)
            self.ledger.begin_text(text.transcript.room, beside=is_beside)

    def end(self, text: Text) -> None:
        """Drop everything provisional of a text that needs no further pass, and keep what was
        learnt."""
        slot = text.slot
        try:
            self.discard(text)
            for source in self.sources:
                if source.serves(text) and text.n_known is not None:
                    source.end(text, slot.committed[text.n_known :])
        finally:
            self.pool.drop(slot.number)
            text.paging = self.target.paging().since(text.paging_before)
            self.trace.add(Track.ENGINE, "generation", slot.begun, self.clock())
        self.trace.flush()
        if text.tally.outcomes:
            self.ledger.keep()

    def discard(self, text: Text) -> None:
        """Drop everything provisional of a text."""
        text.slot.rewind(len(text.slot.committed))
        if text.slot.number in self.pool.root:
            self.pool.bare(text.slot.number)

    def stop_models(self) -> None:
        self.target.cancel()
        for source in self.sources:
            source.cancel()

    def _trace_round(self, text: Text) -> None:
        if self.trace.is_on:
            outcome = text.outcome
            self.trace.add(
                Track.ENGINE,
                "round",
                text.begun_s,
                text.begun_s + outcome.wall_s,
                strategy="tree" if outcome.guessed else "none",
                tokens=outcome.n_tokens,
                accepted=outcome.accepted,
                verified=outcome.verified,
                drafted=outcome.drafted,
                kept=outcome.provisional_kept,
            )
            self.trace.flush()
