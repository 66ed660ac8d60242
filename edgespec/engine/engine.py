"""The engine and its loop: grow the trees, verify them in one pass of the target, accept, learn.

`step` is one pass for all texts. Knows models through their port, guesses through sources and rules
by their interfaces; `scheduler` says which texts are written, `text` knows one text's part. The
module is longer than others, because it is the whole of a round.

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
from typing import TYPE_CHECKING, cast

import numpy as np

from edgespec.concurrency.owning import Users, close_all
from edgespec.concurrency.worker import Running, Worker, result_of
from edgespec.engine import prompt_reading
from edgespec.engine.admission import admit, obstacle
from edgespec.engine.ledger import surest
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.prices import NODE_SHARES
from edgespec.engine.scheduler import Scheduler
from edgespec.engine.settings import EngineSettings
from edgespec.engine.slot import Slot
from edgespec.engine.sources.line_up import line_up
from edgespec.engine.sources.mixer import Mixer
from edgespec.engine.sources.source import Opinion, Source
from edgespec.engine.state_store import KeptLedger
from edgespec.engine.text import Text, ending
from edgespec.errors import Cancelled, SessionClosed
from edgespec.files.json_file import JsonFile
from edgespec.pool import Pool
from edgespec.ports import LanguageModel, PassPart
from edgespec.ports.text_request import TextRequest
from edgespec.rules.acceptance_rules import EXACT_REPLAY, AcceptanceRule
from edgespec.rules.pacer import PACERS, before_pass, most_probable
from edgespec.state.prefix_cache import SlotPrefixes
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.values import RoundStats, SourceStats

if TYPE_CHECKING:
    from edgespec.engine.sources.drawing import DrawingSource

Logits = list[np.ndarray]
"""Logits of each part of a pass, float32 [n_nodes, n_vocab]."""
CAPACITY = 8
"""Nodes of a slot's tree, relative to those of a pass: some are drafted beside it."""
LEAST_BESIDE = 0.05
"""Least cumulative confidence of what is drafted beside a pass, which steps slow down."""
FORCED, FORCED_CONFIDENCE = "grammar", 0.99
"""Source of the tokens that a grammar forces: bytes, which the target may still split into other
tokens."""


class Engine(Scheduler):
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
        state: JsonFile | None = None,
        release: Callable[[], None] = lambda: None,
        n_grammars: int | None = None,
        name: str = "the engine",
        prefixes: Callable[[int], SlotPrefixes] | None = None,
        acceptance: AcceptanceRule = EXACT_REPLAY,
    ) -> None:
        """`sources` guess in addition to the draft model; `state` keeps what is learnt.

        The models are borrowed, unless `release` frees them at the end. At most `n_grammars`
        requests with grammars run at a time. `name` is the subject of error messages. `prefixes`
        says where the texts of a slot are stored. Only with exact replay as `acceptance` is the
        text the target's own; rules that draw guesses write one text at a time.
        """
        settings = settings or EngineSettings()
        self._obstacle = reason = obstacle(target, draft)
        if not reason and draft is not None and draft.info.reads_features:
            target.give_features(draft.info.feature_layers, draft.take_features)
        self.target, self.trace = target, trace
        self.pacer = PACERS[settings.pacer]
        self.limits = settings.limits_for(target.info)
        self.width = settings.n_candidates if self.limits.max_branches > 1 else 1
        usable = None if reason else draft
        self.sources = line_up(target, usable, sources, settings, acceptance.growth)
        draws = acceptance.growth is not None and bool(self.sources)
        self.drawing = cast("DrawingSource", self.sources[0]) if draws else None
        self.pick = acceptance.pick
        self.mixer, self.pool, self.worker = Mixer(), Pool(), Worker()
        kept = state if self.sources else None
        self.ledger = KeptLedger(target, draft.info if draft else None, self.mixer, settings, kept)
        self.pass_ = RoundOutcome()
        n_slots = 1 if draws else min(target.info.n_slots, self.limits.max_nodes)
        self.capacity = CAPACITY * self.limits.max_nodes
        places = (prefixes(n) if prefixes is not None else None for n in range(n_slots))
        slots = [Slot(target, n, self.sources, self.pool, place) for n, place in enumerate(places)]
        super().__init__(
            slots,
            clock,
            Users(name, SessionClosed),
            n_slots if n_grammars is None else n_grammars,
            [target.cancel, *(source.cancel for source in self.sources)],
            partial(close_all, self.worker.close, release),
        )

    def admit(self, terms: TextRequest) -> Text:
        """Prepare a request, whose tokens a `Generation` asks for. Raises UsageError if the target
        cannot serve it."""
        with self._users:
            text = admit(self.target, terms)
        if self._obstacle:
            text.tally.note(self._obstacle)
        with self._lock:
            self._open.add(text)
        return text

    def step(self, texts: Sequence[Text]) -> None:
        """One pass over the target's weights: prepare, guess, verify, accept, learn."""
        self.pass_ = pass_ = RoundOutcome(n_texts=0)
        self.pool.pack()
        for text in texts:
            text.begun_s = self.clock()
            with ending([text]):
                text.prepare(self.pool)
        reads, max_nodes = list[PassPart](), self.limits.max_nodes
        if any(text.is_reading for text in texts):
            reads, max_nodes = prompt_reading.next_parts(self, texts)
        growing = [text for text in texts if text.is_growing and not text.events]
        unread = [s.n_unread(text) for text in growing for s in self.sources if s.serves(text)]
        n_rows = sum(part.n_rows for part in reads)
        self.ledger.begin_pass(max(1, len(growing)), sum(unread), max_nodes, n_rows)
        begun_s = self.clock()
        for text in growing:
            with ending([text]):
                self._begin_round(text, len(texts) - 1)
                for source in text.sources:
                    source.read(text)
        pass_.reading_s = self.clock() - begun_s
        if growing:
            self.grow(growing)
        parts = reads + self._trees(growing, max_nodes)
        if not parts:
            return
        n_rows = sum(len(part.nodes) + len(part.reads) for part in parts)
        verify_s = self.clock()
        if growing and not self.drawing and self.ledger.hides(n_rows):
            evaluate = partial(self.target.evaluate, parts)
            with self.worker.running(evaluate, self.target.cancel) as running:
                self.grow(growing, running)
                logits = result_of(running, partial(check, texts))
        else:
            logits = self.target.evaluate(parts)
        if self.trace.is_on:
            self.trace.add(Track.ENGINE, "verify", verify_s, self.clock(), nodes=n_rows)
        by_slot = {text.slot.number: text for text in texts}
        for part in parts:
            text, its_logits = by_slot[part.slot], logits.pop(0)
            with ending([text]):
                if text not in growing:
                    prompt_reading.take(self, text, part, its_logits)
                elif text.is_at_work:
                    self._accept(text, part.nodes, its_logits)
        pass_.n_rows = max(n_rows, pass_.report.n_tokens)
        pass_.wall_s = self.clock() - begun_s
        self._learn(len(growing))

    # Before the pass

    def _begin_round(self, text: Text, n_others: int) -> None:
        """Begin a round of a text, which shares the pass with `n_others`: its limits, and the
        sources that guess."""
        text.check_cancelled()
        info, n_committed = self.target.info, len(text.slot.committed)
        text.n_drafted, text.beside, text.begun_s = 0, set(), self.clock()
        n_free, are_lines = info.n_ctx - n_committed, not info.tree_capable
        text.limits = before_pass(self.limits, n_free, text.transcript.room, n_others, are_lines)
        text.sources = []
        for source in self.sources:
            if not source.serves(text):
                continue
            reason = source.obstacle(text)
            if reason is not None:
                text.tally.note(
                    f"the {source.name} could not follow after {n_committed} tokens ({reason}): "
                    "the target went on without it",
                    subject=source.name,
                )
            if reason is None and (source.is_free or self.ledger.drafts):
                text.sources.append(source)
            else:
                source.rest(text)
        if not text.sources:
            self.pool.bare(text.slot.number)
        self._hang_forced(text)

    def grow(self, texts: Sequence[Text], running: Running[Logits] | None = None) -> None:
        """Guess after the most probable nodes of any text, as long as another step is worth its
        time: before the pass, or beside it while it is `running`."""
        pool, pass_ = self.pool, self.pass_
        for text in texts:
            if not (running or text.tally.rounds):  # drafts have read the prompt, in its time
                text.charge(pass_.reading_s)
                text.begun_s = self.clock()
        idle = {source for source in self.sources if running and source.is_free}
        by_slot = {text.slot.number: text for text in texts}
        if running:  # for the next round, below a whole path and the target's own token
            for text in (text for text in texts if text.is_growing):
                deepest = min(2 * self.limits.max_depth + 1, text.transcript.room - 1)
                text.limits = text.limits._replace(max_depth=deepest)
        while not (running and running.done()):
            check(texts)
            source, nodes = self._next_step(texts, idle, running is not None)
            if source is None:
                break
            begun_s, n_nodes, is_free = self.clock(), pool.n, source.is_free
            asked: list[int] = []
            with ending([by_slot[n] for n in {*pool.text[nodes].tolist()}]):
                asked = source.guess(pool, nodes, by_slot)
            for node in asked:
                self.hang(node, by_slot[int(pool.text[node])], running is not None)
            if is_free:
                continue
            idle = set() if asked else {*self.sources}
            step_s = self.clock() - begun_s
            if self.trace.is_on:
                track, n_new = Track.BESIDE if running else Track.ENGINE, pool.n - n_nodes
                self.trace.add(track, "draft step", begun_s, begun_s + step_s, nodes=n_new)
            if running:
                pass_.steps_beside += 1
            else:
                pass_.draft_steps += 1
                pass_.growing_s += step_s
                pass_.further_nodes += len(nodes) - 1
                if len(nodes) == 1:
                    pass_.lone_steps_s.append(step_s)

    def _hang_forced(self, text: Text) -> None:
        """Add the tokens that a grammar forces after the root as one branch."""
        node = self.pool.root[text.slot.number]
        most = min(text.limits.max_nodes - 1, text.limits.max_depth)
        for token in text.sampler.forced(most):
            child = self.pool.child(node, token)
            if child is None:
                child = self.pool.add(node, token, FORCED_CONFIDENCE, source=FORCED)
                text.n_drafted += 1
            node = child

    def _next_step(
        self, texts: Sequence[Text], idle: set[Source], is_beside: bool
    ) -> tuple[Source | None, list[int]]:
        """The source that guesses next and its nodes: one that is free, until it is `idle`, or else
        the one with the most probable open node; no source if verifying now is better."""
        pool, ledger, best, chosen, most = self.pool, self.ledger, None, list[int](), 0.0
        texts = [text for text in texts if text.is_growing]
        nodes = pool.alive(*(text.slot.number for text in texts))
        cumulative = pool.cumulative[nodes]
        n = ledger.max_nodes
        max_nodes = self.capacity if is_beside else n
        for source in sorted(self.sources, key=lambda each: not each.is_free):
            found = [] if source in idle else self._open_nodes(source, texts)
            if source.is_free:
                least = np.sort(np.append(np.zeros(n), cumulative))[-n]
                if found := [node for node in found if pool.cumulative[node] > least]:
                    return source, found
                idle.add(source)
            elif found:
                share = ledger.prices.node_share if ledger.stop_rule is None else NODE_SHARES[0]
                found = self.pacer.extend(pool, nodes, found, max_nodes, len(texts), share)
                highest = float(pool.cumulative[found].max(initial=0.0))
                if highest > most:
                    best, chosen, most = source, found, highest
        if best is None or is_beside:
            return (best if most >= LEAST_BESIDE else None), chosen
        if (rule := self.ledger.stop_rule) is not None:
            free = {FORCED, *(source.name for source in self.sources if source.is_free)}
            return (None if rule.fires(pool, nodes.tolist(), chosen, free) else best), chosen
        ends = [
            *{pool.text[n]: n for n in sorted(chosen, key=pool.cumulative.__getitem__)}.values()
        ]
        is_worth_it = ledger.worth_a_step(
            cumulative,
            pool.cumulative[ends],
            pool.depth[ends],
            self.pass_.draft_steps,
            self.pass_.growing_s,
            best.step_depth,
        )
        return (best if is_worth_it else None), chosen

    def _open_nodes(self, source: Source, texts: Sequence[Text]) -> list[int]:
        """The nodes of all texts after which `source` can guess, while there is room."""
        pool = self.pool
        if pool.n >= self.capacity * len(self.slots):
            return []
        return [
            node
            for text in texts
            if source in text.sources
            for node in source.open(pool, text)
            if pool.depth[node] < text.limits.max_depth
        ]

    def hang(self, node: int, text: Text, is_beside: bool = False) -> None:
        """Add the guesses after a node that the pacer chooses, and update the confidences of those
        that are there."""
        pool, opinions = self.pool, self._opinions(node, text)
        if not opinions:
            return
        drawn = self.drawing.drawn(pool, node, text) if self.drawing else None
        if drawn is None:
            guesses = self.mixer.mix(opinions)
            for guess in guesses:
                child = pool.child(node, guess.token)
                if child is not None and guess.confidence != pool.confidence[child]:
                    pool.revise(child, guess.confidence)
            drawn = self.pacer.children(pool, node, guesses[: self.width])
        for guess in drawn:
            if pool.child(node, guess.token) is None:
                child = pool.add(node, *guess)
                text.n_drafted += 1
                if is_beside:
                    text.beside.add(int(pool.key[child]))

    def _opinions(self, node: int, text: Text) -> list[Opinion]:
        """Opinions of all sources about the token after a node."""
        key = int(self.pool.key[node])
        return [said for s in text.sources if (said := s.said(text).get(key)) is not None]

    def _trees(self, texts: Sequence[Text], max_nodes: int) -> list[PassPart]:
        """The parts of a pass that verify the trees, at most `max_nodes` in total."""
        pool, pass_ = self.pool, self.pass_
        limits = {text.slot.number: text.limits for text in texts if text.is_growing}
        if not limits:
            return []
        found = most_probable(pool, limits, max_nodes, self.limits.max_branches)
        cumulative = pool.cumulative[[node for node, _ in found]]
        pass_.expected = float(cumulative.sum()) - len(limits)
        is_ruled = self.ledger.stop_rule is not None and self.ledger.drafts
        if not is_ruled and not self.drawing:  # drawn guesses are all verified
            is_tree = self.target.info.tree_capable
            rows = None if is_tree else np.array([n_rows for _, n_rows in found])
            n_nodes, pass_.expected = self.ledger.best(cumulative, pass_.growing_s, rows)
            found = found[:n_nodes]
        chosen = sorted(node for node, _ in found)
        return [
            PassPart(n, pool, [node for node in chosen if pool.text[node] == n]) for n in limits
        ]

    # After the pass

    def _accept(self, text: Text, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Accept guesses, commit them, and re-root the tree at the target's own token."""
        pool, n_before = self.pool, len(text.events)
        draws = self.drawing.draws if self.drawing else None
        path = text.accept(pool, nodes, logits, self.pick, draws)
        tokens = [event.token for event in text.events[n_before:]]
        for source in text.sources:
            source.learn(pool, text, nodes, logits)
        del logits  # the memory plan has room for the logits of one pass
        if text.sources or len(nodes) > 1:
            self._judge(text, nodes, path, tokens)
        self.target.commit(pool, path, slot=text.slot.number)
        text.slot.committed += pool.token[path].tolist()
        n_kept = 0 if text.transcript.is_finished else self._follow(text, path, tokens[-1])
        self._count(text, len(tokens), len(path) - 1, len(nodes) - 1, n_kept)

    def _judge(
        self, text: Text, nodes: Sequence[int], path: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Count the guesses that were right, by source, and tell the stop rule."""
        pool, pass_ = self.pool, self.pass_
        claimed, right = surest(pool, path, tokens)
        pass_.claimed, pass_.right = pass_.claimed + claimed, pass_.right + right
        accepted = Counter(pool.source[node] for node in path[1:])
        verified = Counter(pool.source[node] for node in nodes if node != path[0])
        text.tally.sources += [SourceStats(name, n, accepted[name]) for name, n in verified.items()]
        if (rule := self.ledger.stop_rule) is not None:
            self.ledger.stop_rule = rule.observe(pool, nodes, path, tokens)

    def _count(
        self, text: Text, n_tokens: int, n_accepted: int, n_verified: int, n_kept: int
    ) -> None:
        """Add a round to the measurements of its text and of the pass."""
        pass_, tally, report, now_s = self.pass_, text.tally, self.target.last_report, self.clock()
        pass_.report, pass_.n_texts = report, pass_.n_texts + 1
        pass_.n_tokens += n_tokens
        pass_.verified += n_verified
        wall_s = now_s - text.begun_s
        tally.drafted += text.n_drafted
        tally.provisional_drafted += len(text.beside)
        tally.provisional_kept += n_kept
        tally.rounds.append(
            RoundStats(
                n_tokens=n_tokens,
                accepted=n_accepted,
                verified=n_verified,
                passes=report.passes,
                draft_s=max(0.0, wall_s - report.wall_s) if text.sources else 0.0,
                pass_s=report.wall_s,
                stall_s=report.stall_s,
                wall_s=wall_s,
                bytes_read=report.bytes_read,
            )
        )
        if self.trace.is_on:
            self.trace.add(
                Track.ENGINE,
                "round",
                text.begun_s,
                now_s,
                strategy="tree" if text.sources or n_verified else "none",
                tokens=n_tokens,
                accepted=n_accepted,
                verified=n_verified,
                drafted=text.n_drafted,
                kept=n_kept,
            )
            self.trace.flush()

    def _follow(self, text: Text, path: Sequence[int], token: int) -> int:
        """Re-root the tree of a text at `token`, which the target picked after `path`; returns how
        many of the guesses that were made beside the pass stay.

        Updates the calibration from the path, and adds guesses that were too improbable below the
        old root but are not below the new one.
        """
        pool = self.pool
        root = pool.child(path[-1], token)
        if root is None:
            root = pool.add(path[-1], token)
        for node, picked in pairwise([*path, root]):
            self.mixer.observe(self._opinions(node, text), int(pool.token[picked]))
        for source in text.sources:
            try:
                source.follow(pool, text, path, root)
            except Exception as error:  # noqa: BLE001 - raised after the accepted tokens
                text.fail(error)
        kept = pool.follow(root)
        n_kept = len(text.beside.intersection(pool.key[kept].tolist()))
        if text.is_at_work:
            for node in kept:
                self.hang(node, text)
        return n_kept

    def _learn(self, n_growing: int) -> None:
        """Learn from the pass what guesses cost and brought, if it was made for `n_growing` trees
        or else for prompts."""
        pass_, report = self.pass_, self.target.last_report
        pass_.guessed = pass_.verified > 0 or pass_.draft_steps > 0
        if self.sources and not n_growing:
            self.ledger.see_prompt(replace(report, passes=1, n_tokens=pass_.n_rows), None)
        elif self.sources and pass_.n_texts == n_growing:
            self.ledger.see(pass_)

    # Texts begin and end

    def begin(self, text: Text) -> None:
        """Begin a text in its slot."""
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
            slot.discard()
            for source in self.sources:
                if source.serves(text) and text.has_begun:
                    source.end(text, slot.committed[text.tally.reused_tokens :])
        finally:
            self.pool.drop(slot.number)
            text.paging = self.target.paging().since(text.paging_before)
            self.trace.add(Track.ENGINE, "generation", slot.begun, self.clock())
        self.trace.flush()
        if text.tally.rounds:
            self.ledger.keep()


def check(texts: Sequence[Text]) -> None:
    """Raise Cancelled once no text needs the pass: it goes on as long as one does."""
    if not any(text.is_at_work and not text.is_cancelled for text in texts):
        raise Cancelled("no text needs the pass any more")
