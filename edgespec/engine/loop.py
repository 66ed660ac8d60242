"""The speculative loop: grow, verify, accept, commit, re-root, adapt.

Calls the rules in order and keeps the models' KV caches consistent. A pass serves all active texts.
Knows models through their port and rules through their interfaces.

Passes compute in the calling thread, but for those beside which it drafts: a second thread that
computes gets OpenMP threads of its own, more than there are cores, and all of them then sleep at
every barrier (decision 0070).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from edgespec.concurrency.owning import Closeable
from edgespec.concurrency.worker import Running, Worker
from edgespec.engine.forest import Forest, Logits
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.prompt import parts_of, take_part
from edgespec.engine.round import Round
from edgespec.engine.slot import Slot
from edgespec.errors import Cancelled
from edgespec.ports import LanguageModel, PassPart
from edgespec.tracing.spans import Trace, Track


class Loop(Closeable):
    """Advances texts by passes of the target."""

    def __init__(
        self,
        target: LanguageModel,
        planner: RoundPlanner,
        clock: Callable[[], float],
        trace: Trace,
    ) -> None:
        """The target is borrowed."""
        self.target = target
        self.clock = clock
        self.worker = Worker()
        self.usual_pass_s = 0.0
        """Expected seconds of a pass; 0 before the first."""
        self._planner = planner
        self._trace = trace
        self._resting: Slot | None = None
        """The only text, while its rounds have no guesses."""
        self._rest_left = 0
        """Rounds of it until the next decision."""
        self._unseen: list[RoundOutcome] = []
        """Rounds since the last decision, from which the planner is yet to learn."""

    def close(self) -> None:
        """Stop the worker thread. Idempotent."""
        self.worker.close()

    def end(self, slot: Slot) -> None:
        """Drop everything provisional of a text that needs no further pass, and keep what was
        learnt."""
        request = slot.request
        self._end_rest()
        try:
            slot.rewind(len(slot.committed))
        finally:
            request.paging = self.target.paging().since(slot.paging_before)
            self._trace.add(Track.ENGINE, "generation", slot.begun, self.clock())
        self._trace.flush()
        if request.tally.outcomes:
            self._planner.keep()

    def advance(self, slots: Sequence[Slot]) -> None:
        """Make one pass, which verifies a tree of each text or reads a part of its prompt.

        The trees grow, the pass verifies them, each text accepts, commits and re-roots its own, and
        the planner learns. The root of a tree is the text's last token, whose KV is not computed
        yet. An error in one text is raised to the consumer of its tokens.
        """
        check = _cancelled_together(slots)
        # without drafters nothing is planned or learnt
        has_drafters = any(slot.grower is not None for slot in slots)
        for slot in slots:
            slot.prepare(len(slots) - 1)
        decides = has_drafters and not self._rests(slots)
        rounds, risk_s = self._begin_rounds(slots, decides)
        prompts, max_nodes = self._prompts(slots, len(rounds))
        if rounds and has_drafters and self._resting is None:
            n_prompt_rows = sum(part.n_rows for part in prompts)
            self._planner.share_pass(len(rounds), n_prompt_rows, max_nodes)
        prepared = self.clock()
        forest = Forest(rounds, self._planner, risk_s, self.clock, check)
        try:
            forest.grow()
            parts = prompts + forest.parts(max_nodes)
            if not parts:
                return
            n_rows = sum(part.n_rows for part in parts)
            logits = self._verify(parts, forest.beside(n_rows), check)
        except Cancelled:
            for slot in slots:
                slot.start_again()
            return
        except Exception as error:  # noqa: BLE001 - raised to the consumers of all texts
            for slot in slots:
                slot.fail(error)
            return
        outcomes = self._take(slots, parts, logits)
        if has_drafters and not rounds:
            report = self.target.last_report
            n_context = len(slots[0].committed) if len(slots) == 1 else None
            self._planner.see_prompt(replace(report, passes=1, n_tokens=n_rows), n_context)
        elif has_drafters and len(outcomes) == len(rounds):
            if self._resting is None:
                self._planner.see_round(forest.outcome(outcomes, self.clock() - prepared, n_rows))
            else:
                self._see_later(outcomes[0], n_rows)

    def _take(
        self, slots: Sequence[Slot], parts: Sequence[PassPart], logits: Logits
    ) -> list[RoundOutcome]:
        """Use the logits of a pass, which this empties; returns the outcomes of its rounds."""
        by_number = {slot.number: slot for slot in slots}
        outcomes = []
        for part in parts:
            slot, its_logits = by_number[part.slot], logits.pop(0)
            with slot.ending_on_error():
                if slot.round is not None:
                    outcomes.append(self._accept(slot, slot.round, part.nodes, its_logits))
                elif slot.reads_prompt:
                    take_part(slot, part, its_logits)
        return outcomes

    def _rests(self, slots: Sequence[Slot]) -> bool:
        """True if the only text still goes on without guesses; otherwise the planner learns from
        the rounds in which one did."""
        if self._rest_left and len(slots) == 1 and slots[0].round is not None:
            return True
        self._end_rest()
        return False

    def _see_later(self, outcome: RoundOutcome, n_rows: int) -> None:
        """Count a round without guesses, whose pass had `n_rows`."""
        outcome.n_rows = max(n_rows, outcome.report.n_tokens)
        self._unseen.append(outcome)
        self._rest_left -= 1

    def _end_rest(self) -> None:
        """Learn from the rounds without guesses since the last decision: what the middle one took,
        and what lookups would have guessed."""
        slot, unseen = self._resting, self._unseen
        self._resting, self._unseen, self._rest_left = None, [], 0
        if slot is not None and slot.grower is not None:
            by_pass = sorted(unseen, key=lambda outcome: outcome.report.wall_s)
            for n, outcome in enumerate(by_pass):
                self._planner.see_round(outcome, is_typical=n == (len(unseen) - 1) // 2)
            n_tokens = sum(outcome.n_tokens for outcome in unseen)
            self._planner.follow(slot.grower.dry_run(slot.committed, n_tokens))

    def _begin_rounds(self, slots: Sequence[Slot], decides: bool) -> tuple[list[Round], float]:
        """The rounds of a pass, of the texts whose prompts are read, and the most seconds that
        their guesses may cost: none unless the planner `decides`."""
        planner, risk_s, free_only, n_others = self._planner, 0.0, False, len(slots) - 1
        growing = [slot for slot in slots if slot.round is not None]
        if growing and decides:
            planner.serve(
                n_texts=len(growing),
                n_unread=sum(slot.n_unread for slot in growing),
                room=sum(slot.request.transcript.room for slot in growing),
            )
            risk_s = planner.choose()
            if not risk_s and not n_others:
                risk_s = planner.choose_free()
                free_only = risk_s > 0 and growing[0].is_sure_of_next
                if not free_only:
                    self._resting, self._rest_left = growing[0], 1 if risk_s else planner.rest()
                    risk_s = 0.0
        for slot in growing:
            with slot.ending_on_error():
                assert slot.round is not None
                if decides:
                    slot.round.let_guess(risk_s > 0, free_only)
                slot.round.begin(n_others)
        return [slot.round for slot in growing if slot.round is not None], risk_s

    def _prompts(self, slots: Sequence[Slot], n_trees: int) -> tuple[list[PassPart], int]:
        """The parts of prompts in a pass with `n_trees` trees, and the most nodes of these trees
        in total."""
        reading = [slot for slot in slots if slot.reads_prompt]
        info, max_nodes = self.target.info, slots[0].limits.max_nodes
        if not reading:
            return [], max_nodes
        n_hidden = self._planner.n_hidden(info.max_rows)
        parts = parts_of(reading, info, n_trees, max_nodes, n_hidden)
        n_rows = sum(part.n_rows for part in parts)
        n_nodes = max_nodes - sum(len(part.nodes) for part in parts)
        # trees have the rest of the rows whose compute time is hidden, so as not to delay prompts
        n_cheap = max(2 * n_trees, n_hidden - n_rows)
        return parts, min(n_nodes, info.max_rows - n_rows, n_cheap)

    def _verify(
        self,
        parts: Sequence[PassPart],
        beside: Callable[[Running[Logits]], None] | None,
        check: Callable[[], None],
    ) -> Logits:
        """Make one pass and return its logits; `beside` runs during the pass, which is then made in
        a worker thread while `check` is called repeatedly, which may raise."""
        n_rows = sum(part.n_rows for part in parts)
        with self._trace.span(Track.ENGINE, "verify").note(nodes=n_rows):
            if beside is None:
                logits = self.target.evaluate(parts)
            else:
                evaluate = partial(self.target.evaluate, parts)
                with self.worker.running(evaluate, self.target.cancel) as running:
                    beside(running)
                    logits = running.result(check)
        pass_s, usual_s = self.target.last_report.wall_s, self.usual_pass_s
        self.usual_pass_s = min(pass_s, 2 * usual_s) if usual_s else pass_s
        return logits

    def _accept(
        self, slot: Slot, round_: Round, nodes: Sequence[int], logits: np.ndarray
    ) -> RoundOutcome:
        """Accept guesses, commit them, and re-root the tree at the target's own token."""
        round_.accept(nodes, logits)
        slot.commit(round_.tree, round_.path)
        round_.observe_logits(nodes, logits)
        del logits  # the memory plan has room for the logits of one pass
        slot.tree = round_.reroot()
        outcome = round_.end(slot.tree)
        slot.request.tally.outcomes.append(outcome)
        slot.events += round_.events
        return outcome


def _cancelled_together(slots: Sequence[Slot]) -> Callable[[], None]:
    """A check that raises Cancelled once all texts are cancelled: a pass continues as long as one
    of them needs it."""
    requests = [slot.request for slot in slots]

    def check() -> None:
        if all(request.cancelled.is_set() for request in requests):
            raise Cancelled("the generation was cancelled")

    return check
