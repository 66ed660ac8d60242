"""The speculative loop: grow, verify, accept, commit, re-root, adapt.

Calls the rules in order and keeps the models' KV caches consistent. A pass serves all active texts.
Knows models through their port and rules through their interfaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.engine.forest import Forest, GrowingTree
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.passes import Passes
from edgespec.engine.planning.planner_store import PlannerStore
from edgespec.engine.prompt import parts_of
from edgespec.engine.request import ActiveRequest
from edgespec.engine.settings import RoundRules
from edgespec.engine.slot import Slot
from edgespec.engine.text import TextAtWork, cancelled_together
from edgespec.errors import Cancelled
from edgespec.ports.texts import PassPart
from edgespec.tracing.spans import Track

if TYPE_CHECKING:
    from edgespec.engine.drafting.corrections import CorrectionLog


class Loop:
    """Advances texts by passes of the target."""

    def __init__(
        self,
        passes: Passes,
        rules: RoundRules,
        learning: PlannerStore,
        observer: CorrectionLog | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """`notes` are added to every result."""
        self._notes = notes
        self._passes = passes
        self._rules = rules
        self._learning = learning
        self._observer = observer

    @property
    def clock(self) -> Callable[[], float]:
        return self._passes.clock

    @property
    def usual_pass_s(self) -> float:
        """Expected seconds of a pass; 0 before the first."""
        return self._passes.usual_pass_s

    def begin(self, slot: Slot, request: ActiveRequest) -> TextAtWork:
        """Begin the text of a request; `slot` serves it."""
        for note in self._notes:
            request.tally.note(note)
        return TextAtWork(slot, request, self._rules, self._learning)

    def end(self, text: TextAtWork) -> None:
        """Drop everything provisional of a text that needs no further pass, and keep what was
        learnt."""
        request, trace = text.request, self._passes.trace
        try:
            text.slot.rewind(len(text.slot.committed))
        finally:
            request.paging = self._passes.target.paging().since(text.paging_before)
            trace.add(Track.ENGINE, "generation", text.begun, self.clock())
        if self._observer is not None:
            self._observer.see_end(request)
        trace.flush()
        if request.tally.outcomes:
            self._learning.keep()

    def advance(self, texts: Sequence[TextAtWork]) -> None:
        """Make one pass, which verifies a tree of each text or reads a part of its prompt.

        The root of a tree is the text's last token, whose KV is not computed yet. An error in one
        text is raised to the consumer of its tokens.
        """
        check = cancelled_together(texts)
        growths = self._prepare(texts)
        tails, max_nodes = self._tails(texts, len(growths))
        if growths:
            self._learning.share_pass(len(growths), tails, max_nodes)
        prepared = self._passes.clock()
        forest = Forest(growths, self._rules, self._learning.planner)
        try:
            forest.grow(self._passes.clock, check)
            self._end_failed(texts, forest)
            parts = tails + self._grown(forest, max_nodes)
            if not parts:
                return
            n_rows = sum(part.n_rows for part in parts)
            logits = self._passes.evaluate(parts, forest.beside(n_rows, check), check)
            self._end_failed(texts, forest)
        except Cancelled:
            for text in texts:
                text.start_again()
            return
        except Exception as error:  # noqa: BLE001 - raised to the consumers of all texts
            for text in texts:
                text.fail(error)
            return
        by_number = {text.slot.number: text for text in texts}
        outcomes = []
        for part in parts:
            text, its_logits = by_number[part.text], logits.pop(0)
            with text.alone():
                if text.growth is not None:
                    outcomes.append(self._accept(text, part.nodes, its_logits))
                elif text.tail is not None:
                    text.take_tail(part, text.tail, its_logits)
        if not growths:
            report = self._passes.target.last_report
            n_context = len(texts[0].slot.committed) if len(texts) == 1 else None
            self._learning.see_prompt(replace(report, passes=1, n_tokens=n_rows), n_context)
        elif len(outcomes) == len(growths):
            self._learning.see_round(forest.outcome(outcomes, self._passes.clock() - prepared))

    def _prepare(self, texts: Sequence[TextAtWork]) -> list[GrowingTree]:
        """Prepare texts for a pass; returns the trees of those whose prompts are read."""
        growing = [text for text in texts if text.is_growing]
        if growing:
            self._learning.serve(
                n_texts=len(growing),
                n_unread=sum(text.slot.n_unread for text in growing),
                room=sum(text.request.transcript.room for text in growing),
            )
        for text in texts:
            text.prepare(n_others=len(texts) - 1)
        return [text.growth for text in texts if text.growth is not None]

    @staticmethod
    def _end_failed(texts: Sequence[TextAtWork], forest: Forest) -> None:
        """End the texts whose drafters failed; the others continue."""
        for text in texts:
            if text.growth in forest.failed:
                text.fail(forest.failed[text.growth])

    def _tails(self, texts: Sequence[TextAtWork], n_trees: int) -> tuple[list[PassPart], int]:
        """The parts of prompts in a pass with `n_trees` trees, and the most nodes of these trees
        in total."""
        tails = [text.tail for text in texts if text.tail is not None]
        if not tails:
            return [], self._rules.max_nodes
        n_hidden = self._learning.n_hidden(self._rules.max_rows)
        parts = parts_of(tails, n_trees, self._rules.max_nodes, n_hidden)
        return parts, self._rules.room_beside(parts, n_trees, n_hidden)

    @staticmethod
    def _grown(forest: Forest, max_nodes: int) -> list[PassPart]:
        """The parts of a pass that verify the selected nodes of all trees."""
        nodes = forest.select(max_nodes)
        return [
            PassPart(growth.round.slot.number, growth.tree, its_nodes)
            for growth, its_nodes in zip(forest.growths, nodes, strict=True)
        ]

    def _accept(self, text: TextAtWork, nodes: Sequence[int], logits: np.ndarray) -> RoundOutcome:
        """Accept guesses, commit them, and re-root the tree at the target's own token."""
        assert text.growth is not None
        round_, tree = text.growth.round, text.growth.tree
        transcript, tally = text.request.transcript, text.request.tally
        accepted = round_.accept(tree, nodes, logits, text.request)
        text.slot.commit(tree, accepted.path)
        if round_.grower is not None:
            text.slot.n_drafted = len(text.slot.committed)
        round_.observe_logits(tree, nodes, logits, accepted)
        if self._observer is not None:
            self._observer.see_round(text.request, tree, nodes, logits, accepted)
        del logits  # the memory plan has room for the logits of one pass
        text.tree = round_.reroot(tree, accepted, transcript.is_finished)
        outcome = round_.end(tree, nodes, accepted, text.tree)
        tally.outcomes.append(outcome)
        text.events += accepted.events
        if failure := accepted.failure or round_.failure:
            text.fail(failure)
        return outcome
