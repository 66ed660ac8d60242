"""One text at work: its prompt, its tree, and the tokens that nobody has taken yet.

It knows one text's part in a pass; the passes are the loop's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from edgespec.engine.forest import GrowingTree
from edgespec.engine.learning import Learning
from edgespec.engine.pair import Pair
from edgespec.engine.prompt import Tail, is_read, read_prompt
from edgespec.engine.request import ActiveRequest
from edgespec.engine.round import begin_round
from edgespec.engine.settings import RoundRules
from edgespec.errors import Cancelled
from edgespec.ports.texts import PassPart
from edgespec.tree import ROOT, TokenTree
from edgespec.values import TokenEvent


class TextAtWork:
    """A request, and the text of the models that is its own while it runs."""

    def __init__(
        self, pair: Pair, request: ActiveRequest, rules: RoundRules, learning: Learning
    ) -> None:
        self.pair = pair
        self.request = request
        self.events: deque[TokenEvent] = deque()
        """Accepted tokens that nobody has taken."""
        self.tree = TokenTree(request.prompt[-1], rules.tree_capacity)
        self.tail: Tail | None = None
        """The text's part in the next pass, if it is the rest of a prompt."""
        self.growth: GrowingTree | None = None
        """The text's part in the next pass, if it is a tree of guesses."""
        self._rules = rules
        self._learning = learning
        self._reading: Iterator[None] | None = None
        self._rest: Tail | None = None
        """The part of the prompt that passes read, once nothing else reads it."""
        self._failure: Exception | None = None

    @property
    def is_at_work(self) -> bool:
        """True if passes can bring it on."""
        return self._failure is None and not self.request.transcript.is_finished

    @property
    def is_growing(self) -> bool:
        """True if its prompt is read: its part in a pass is a tree."""
        return self._rest is not None and is_read(self.pair, self.request)

    @property
    def waits(self) -> bool:
        """True if its tokens are yet to come."""
        return self.is_at_work and not self.events

    def prepare(self, n_others: int) -> None:
        """Get ready for a pass with `n_others` texts: read the prompt, or a portion of it, and
        begin a round."""
        self.tail = self.growth = None
        with self.alone():
            if self.is_growing and self.request.shift is not None and self.pair.is_full:
                self._shift_context()
            if self._rest is None:
                if self._reading is None:
                    self._reading = read_prompt(self.pair, self.request, self._learning, n_others)
                if any(True for _ in self._reading):
                    return
                self._rest = Tail(self.pair, self.request)
            if not is_read(self.pair, self.request):
                self.pair.check_cancelled()
                self.tail = self._rest
            else:
                planner = self._learning.planner
                round_ = begin_round(
                    self.pair, self._rules, planner, self.tree, self.request, n_others
                )
                self.growth = GrowingTree(round_, self.tree, self.request.sampler)

    def _shift_context(self) -> None:
        """Drop a part of the text; what stays is read again, as a prompt is."""
        self.request.shift_context([*self.pair.committed, int(self.tree.token[ROOT])])
        self.tree = TokenTree(self.request.reading[-1], self._rules.tree_capacity)
        self._reading = self._rest = None

    def take_tail(self, part: PassPart, tail: Tail, logits: np.ndarray) -> None:
        """Take the pass over a rest of the prompt."""
        event = tail.take(part, logits)
        if event is not None:
            self.events.append(event)
            self.tree = TokenTree(event.token, self._rules.tree_capacity)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which errors end this text and no other."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised where its tokens are taken
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End here; the error is raised after the tokens accepted before it."""
        self._failure = self._failure or error
        self.tail = self.growth = None

    def start_again(self) -> None:
        """Forget a pass that did not come to its end, unless the text was cancelled."""
        with self.alone():
            self.pair.check_cancelled()
            self.pair.rewind(len(self.pair.committed))
            self.tree = self.tree.bare()

    def raise_failure(self) -> None:
        """Raise what ended the text, if anything did."""
        if self._failure is not None:
            raise self._failure


def cancelled_together(texts: Sequence[TextAtWork]) -> Callable[[], None]:
    """A check that raises Cancelled once all of `texts` are cancelled: a pass that is of use to
    one of them goes on."""

    def check() -> None:
        if all(text.request.cancelled.is_set() for text in texts):
            raise Cancelled("the generation was cancelled")

    return check
