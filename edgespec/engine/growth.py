"""Growth of the trees: which source guesses after which nodes, and which nodes a pass verifies.

Knows sources, the mixer, the pacer and the deal of the ledger by their interfaces, and no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.concurrency.worker import Running
from edgespec.engine.ledger import Deal
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.scheduler import Scheduler
from edgespec.engine.sources.mixer import Mixer
from edgespec.engine.sources.source import Opinion, Source
from edgespec.engine.state_store import KeptLedger
from edgespec.engine.text import Text
from edgespec.errors import Cancelled
from edgespec.pool import Pool
from edgespec.ports import LanguageModel, PassPart
from edgespec.rules.pacer import Limits, Pacer, most_probable
from edgespec.tracing.spans import Trace, Track

Logits = list[np.ndarray]
"""Logits of each part of a pass, float32 [n_nodes, n_vocab]."""
FORCED, FORCED_CONFIDENCE = "grammar", 0.99
"""Source of the tokens that a grammar forces: bytes, which the target may still split into other
tokens."""


class TreeGrowth(Scheduler):
    """Grows the trees of all texts in one pool."""

    target: LanguageModel
    limits: Limits
    pacer: Pacer
    sources: Sequence[Source]
    mixer: Mixer
    pool: Pool
    ledger: KeptLedger
    trace: Trace

    def grow(
        self,
        texts: Sequence[Text],
        deal: Deal,
        pass_: RoundOutcome,
        running: Running[Logits] | None = None,
    ) -> None:
        """Guess after the most probable nodes of any text, as long as another step is worth its
        time: before the pass, or beside it while it is `running`."""
        pool, begun_s, n_before = self.pool, self.clock(), self.pool.n
        texts = [text for text in texts if text.is_growing]
        for text in texts:
            if running is None:
                self._hang_forced(text)
            else:
                text.limits = self.limits.during_pass(text.transcript.room)
        if running is None:
            self._guess_freely(texts, deal)
        free_s = self.clock()
        while not (running and running.done):
            check(texts)
            source, nodes = self._best_step(texts, deal, pass_, running is not None)
            if source is None:
                break
            sure, n_nodes = float(pool.cumulative[nodes].max()), pool.n
            with self.trace.span(Track.BESIDE if running else Track.ENGINE, "draft step") as span:
                asked = self._guess(source, nodes, texts)
                texts = [text for text in texts if text.is_growing]
                self._guess_freely(texts, deal)
                span.note(nodes=pool.n - n_nodes, tree=pool.n, Tc=round(sure, 6))
            if not asked:
                break
            if running is None:
                pass_.draft_steps += 1
                pass_.growing_s = self.clock() - free_s
            else:
                pass_.steps_beside += 1
        if running is None and any(text.sources for text in texts):
            self.trace.add(Track.ENGINE, "grow", begun_s, self.clock(), steps=pass_.draft_steps)
        self._count(texts, n_before, self.clock() - begun_s, running is not None)
        if running is not None and not texts:
            raise Cancelled("no text needs the pass any more")

    def _count(self, texts: Sequence[Text], n_before: int, seconds: float, is_beside: bool) -> None:
        """Count the nodes that came after the first `n_before`, and the seconds of their growth."""
        pool = self.pool
        for text in texts:
            n_new = int((pool.text[n_before : pool.n] == text.slot.number).sum())
            text.outcome.drafted += n_new
            if not is_beside:
                text.outcome.draft_s += seconds
            elif n_new:
                text.beside = range(int(pool.key[n_before]), pool.next_key)
                text.outcome.provisional_drafted += n_new

    def _hang_forced(self, text: Text) -> None:
        """Add the tokens that a grammar forces after the root as one branch."""
        node = self.pool.root[text.slot.number]
        most = min(text.limits.max_nodes - 1, text.limits.max_depth)
        for token in text.sampler.forced(most):
            child = self.pool.child(node, token)
            if child is None:
                child = self.pool.add(node, token, FORCED_CONFIDENCE, source=FORCED)
            node = child

    def _guess_freely(self, texts: Sequence[Text], deal: Deal) -> None:
        """Add the guesses that cost no draft step."""
        for source in self.sources:
            while source.is_free and (nodes := self._open_nodes(source, texts)):
                kept = np.sort(self.pool.cumulative[self._nodes(texts)])[-deal.max_nodes :]
                least = kept[0] if len(kept) == deal.max_nodes else 0.0
                nodes = [node for node in nodes if self.pool.cumulative[node] > least]
                if not nodes or not self._guess(source, nodes, texts):
                    break

    def _nodes(self, texts: Sequence[Text]) -> NDArray[np.int64]:
        """Nodes of the trees of `texts`, ascending."""
        return self.pool.nodes([text.slot.number for text in texts])

    def _open_nodes(self, source: Source, texts: Sequence[Text]) -> list[int]:
        """The nodes of all texts after which `source` can guess, while there is room."""
        pool, found = self.pool, list[int]()
        if pool.n >= self.limits.tree_capacity * len(self.slots):
            return found
        for text in texts:
            if source in text.sources:
                nodes, deepest = source.open(pool, text), text.limits.max_depth
                found += [node for node in nodes if pool.depth[node] < deepest]
        return found

    def _best_step(
        self, texts: Sequence[Text], deal: Deal, pass_: RoundOutcome, is_beside: bool
    ) -> tuple[Source | None, list[int]]:
        """The source with the most probable open node and the nodes of its next step; no source if
        verifying now is better."""
        pool, best, chosen, most = self.pool, None, list[int](), 0.0
        nodes, n_texts = self._nodes(texts), len(texts)
        max_nodes = self.limits.tree_capacity if is_beside else deal.max_nodes
        for source in self.sources:
            if not source.is_free and (open_nodes := self._open_nodes(source, texts)):
                its_nodes = self.pacer.extend(pool, nodes, open_nodes, max_nodes, n_texts)
                cumulative = float(pool.cumulative[its_nodes].max(initial=0.0))
                if cumulative > most:
                    best, chosen, most = source, its_nodes, cumulative
        if best is None or is_beside:
            return best, chosen
        if (rule := self.ledger.stop_rule) is not None:
            free = {FORCED, *(source.name for source in self.sources if source.is_free)}
            return (None if rule.fires(pool, nodes.tolist(), chosen, free) else best), chosen
        ends = _ends(pool, chosen)
        is_worth_it = deal.worth_a_step(
            pool.cumulative[nodes],
            pool.cumulative[ends],
            pool.depth[ends],
            pass_.draft_steps,
            pass_.growing_s,
            best.step_depth,
        )
        return (best if is_worth_it else None), chosen

    def _guess(self, source: Source, nodes: Sequence[int], texts: Sequence[Text]) -> list[int]:
        """Let a source guess after `nodes` and add what it says; an error ends their texts."""
        by_number = {text.slot.number: text for text in texts}
        try:
            asked = source.guess(self.pool, nodes, by_number)
        except Cancelled:
            raise
        except Exception as error:  # noqa: BLE001 - raised to the texts' consumers
            for number in set(self.pool.text[list(nodes)].tolist()):
                by_number[number].fail(error)
            return []
        for node in asked:
            self.hang(node, by_number[int(self.pool.text[node])])
        return asked

    def hang(self, node: int, text: Text) -> None:
        """Add the guesses after a node that the pacer chooses, and update the confidences of those
        that are there."""
        pool, opinions = self.pool, self.opinions(node, text)
        if not opinions:
            return
        drawn = text.sources[0].drawn(pool, node, text)
        if drawn is not None:
            for guess in drawn:
                pool.add(node, *guess)
            return
        guesses = self.mixer.mix(opinions)
        for guess in guesses:
            child = pool.child(node, guess.token)
            if child is not None and guess.confidence != pool.confidence[child]:
                pool.revise(child, guess.confidence)
        for guess in self.pacer.children(pool, node, guesses):
            if pool.child(node, guess.token) is None:
                pool.add(node, *guess)

    def opinions(self, node: int, text: Text) -> list[Opinion]:
        """Opinions of all sources about the token after a node."""
        key = int(self.pool.key[node])
        return [said for s in text.sources if (said := s.said(text).get(key)) is not None]

    def trees(
        self, texts: Sequence[Text], deal: Deal, pass_: RoundOutcome, max_nodes: int
    ) -> list[PassPart]:
        """The parts of a pass that verify the trees, at most `max_nodes` in total."""
        pool = self.pool
        texts = [text for text in texts if text.is_growing]
        if not texts:
            return []
        limits = {text.slot.number: text.limits for text in texts}
        found = most_probable(pool, limits, max_nodes, self.limits.max_branches)
        cumulative = pool.cumulative[[node for node, _ in found]]
        pass_.expected = float(cumulative.sum()) - len(texts)
        is_ruled = self.ledger.stop_rule is not None and deal.drafts
        if not is_ruled and not pool.draws:  # drawn guesses are all verified
            rows = None
            if self.limits.computes_lines:
                rows = np.array([n_rows for _, n_rows in found])
            n_nodes, pass_.expected = deal.best(cumulative, pass_.growing_s, rows)
            found = found[:n_nodes]
        chosen = sorted(node for node, _ in found)
        return [
            PassPart(number, pool, [node for node in chosen if pool.text[node] == number])
            for number in limits
        ]


def check(texts: Sequence[Text]) -> None:
    """Raise Cancelled once all texts are cancelled: a pass goes on as long as one needs it."""
    if texts and all(text.is_cancelled for text in texts):
        raise Cancelled("the generation was cancelled")


def _ends(pool: Pool, nodes: Sequence[int]) -> list[int]:
    """The most probable of `nodes` in each text."""
    best: dict[int, int] = {}
    for node in nodes:
        text = int(pool.text[node])
        if text not in best or pool.cumulative[node] > pool.cumulative[best[text]]:
            best[text] = node
    return [*best.values()]
