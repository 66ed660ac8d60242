"""One active text: its prompt, its tree, and accepted tokens that are not yielded yet.

Knows one text's part in a pass; `loop` makes the passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from edgespec.engine.forest import GrowingTree
from edgespec.engine.planning.planner_store import PlannerStore
from edgespec.engine.prompt import Tail, is_read, read_prompt
from edgespec.engine.request import ActiveRequest
from edgespec.engine.round import begin_round
from edgespec.engine.settings import RoundRules
from edgespec.engine.slot import Slot
from edgespec.errors import Cancelled
from edgespec.ports.texts import PassPart
from edgespec.tree import ROOT, TokenTree
from edgespec.values import TokenEvent


class TextAtWork:
    """An active request and the models' text that serves it."""

    def __init__(
        self, slot: Slot, request: ActiveRequest, rules: RoundRules, learning: PlannerStore
    ) -> None:
        self.slot = slot
        self.request = request
        self.events: deque[TokenEvent] = deque()
        """Accepted tokens that are not yielded yet."""
        self.tree = TokenTree(request.prompt[-1], rules.tree_capacity)
        self.tail: Tail | None = None
        """Part of the next pass, if it reads the rest of the prompt."""
        self.growth: GrowingTree | None = None
        """Part of the next pass, if it verifies a tree."""
        self._rules = rules
        self._learning = learning
        self._reading: Iterator[None] | None = None
        self._rest: Tail | None = None
        """The rest of the prompt, once it is left to passes."""
        self.failure: BaseException | None = None
        """Error that ended the text, Cancelled included."""
        self.paging_before = slot.passes.target.paging()
        self.begun = slot.clock()

    @property
    def is_at_work(self) -> bool:
        """True if it needs further passes."""
        return self.failure is None and not self.request.transcript.is_finished

    @property
    def is_growing(self) -> bool:
        """True if its prompt is read, so that passes verify its tree."""
        return self._rest is not None and is_read(self.slot, self.request)

    def prepare(self, n_others: int) -> None:
        """Prepare for a pass with `n_others` texts: read the prompt or a part of it, or begin a
        round."""
        self.tail = self.growth = None
        with self.alone():
            if self.is_growing and self.request.shift is not None and self.slot.is_full:
                self._shift_context()
            if self._rest is None:
                if self._reading is None:
                    self._reading = read_prompt(self.slot, self.request, self._learning, n_others)
                if any(True for _ in self._reading):
                    return
                self._rest = Tail(self.slot, self.request)
            if not is_read(self.slot, self.request):
                self.slot.check_cancelled()
                self.tail = self._rest
            else:
                planner = self._learning.planner
                round_ = begin_round(
                    self.slot, self._rules, planner, self.tree, self.request, n_others
                )
                self.growth = GrowingTree(round_, self.tree, self.request.sampler)

    def _shift_context(self) -> None:
        """Drop a part of the text and read the rest again like a prompt."""
        self.request.shift_context([*self.slot.committed, int(self.tree.token[ROOT])])
        self.tree = TokenTree(self.request.reading[-1], self._rules.tree_capacity)
        self._reading = self._rest = None

    def take_tail(self, part: PassPart, tail: Tail, logits: np.ndarray) -> None:
        """Process the logits of a pass that read a part of the prompt."""
        event = tail.take(part, logits)
        if event is not None:
            self.events.append(event)
            self.tree = TokenTree(event.token, self._rules.tree_capacity)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Context manager in which an error ends this text only."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised to the text's consumer
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the text; the error is raised after the tokens accepted before it."""
        self.failure = self.failure or error
        self.tail = self.growth = None

    def start_again(self) -> None:
        """Discard an interrupted pass and its guesses, unless the text was cancelled."""
        with self.alone():
            self.slot.check_cancelled()
            self.slot.rewind(len(self.slot.committed))
            self.tree = self.tree.bare()


def cancelled_together(texts: Sequence[TextAtWork]) -> Callable[[], None]:
    """A check that raises Cancelled once all of `texts` are cancelled: a pass continues as long as
    one of them needs it."""

    def check() -> None:
        if all(text.request.cancelled.is_set() for text in texts):
            raise Cancelled("the generation was cancelled")

    return check
