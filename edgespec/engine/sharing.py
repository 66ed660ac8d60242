"""One engine shared by many generations: a queue of turns, and safe closing.

Knows requests and threads, but no tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

from edgespec.concurrency.owning import POLL_S, Closeable, Users, close_all
from edgespec.engine.engine import Engine
from edgespec.engine.request import ActiveRequest
from edgespec.errors import SessionClosed, UsageError
from edgespec.ports.text_request import TextRequest
from edgespec.values import TokenEvent

_WITHIN = (
    "this thread is within a call of the session and would wait for itself: do it when the call "
    "has come back"
)
_UNDER_WAY = (
    "this thread has a generation of the session under way and would wait for itself: finish it, "
    "close it, or go on with it in another thread"
)


@dataclass(eq=False, slots=True)
class Turn:
    """A request in the queue, from the request for its first token to its end."""

    request: ActiveRequest | None = None
    """None for work with the models between texts."""
    events: Generator[TokenEvent, None, None] | None = None
    """Iterator over the tokens; None before the turn has begun."""
    thread: int | None = None
    """Identifier of the thread that advanced it last."""
    has_place: bool = False
    """True once it may run."""
    is_over: bool = False
    is_dropped: bool = False
    """True if its generation was garbage-collected: a waiting thread then closes it."""

    @property
    def has_grammar(self) -> bool:
        return self.request is not None and self.request.terms.constraint is not None


class SharedEngine(Closeable):
    """Runs as many requests at a time as the engine has texts, in order of arrival.

    A request keeps its text until it ends. Later ones wait; requests without a grammar may overtake
    those that wait for memory for grammars. A thread that would wait for itself gets a UsageError.
    """

    def __init__(
        self, engine: Engine, release: Callable[[], None], n_grammars: int | None = None
    ) -> None:
        """`close` calls `release` to free the models; at most `n_grammars` requests with grammars
        run at a time."""
        self._engine = engine
        self._n_grammars = engine.n_texts if n_grammars is None else n_grammars
        self._release_models = release
        self._users = Users("the session", SessionClosed)
        self._line: list[Turn] = []
        self._open: list[Turn] = []
        self._change = threading.Condition()

    @property
    def is_closed(self) -> bool:
        return self._users.is_released

    @property
    def n_waiting(self) -> int:
        """Number of turns that wait."""
        return sum(not turn.has_place for turn in self._line)

    def use(self) -> AbstractContextManager[None]:
        """Context manager for a use of the models outside a turn. Raises SessionClosed."""
        return self._users.use()

    def within(self) -> AbstractContextManager[bool]:
        """Context manager for a callback, in which the session cannot be closed."""
        return self._users.within()

    def admit(self, terms: TextRequest) -> ActiveRequest:
        """`Engine.admit`. Raises UsageError and SessionClosed."""
        with self._users.use():
            return self._engine.admit(terms)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Context manager for work with the models while no text is active; waits in the queue.

        Raises SessionClosed, and UsageError if this thread has an unfinished generation.
        """
        if self._users.is_inside:
            raise UsageError(_WITHIN)
        turn = Turn()
        with self._users.use():
            self._wait_for(turn)
            try:
                yield
            finally:
                with self._change:
                    self._line.remove(turn)
                    self._change.notify_all()

    def open(self, request: ActiveRequest) -> Turn:
        """Create a turn for `request`, which `cancel` reaches but which is not queued yet."""
        turn = Turn(request)
        with self._change:
            going = (other for other in self._open if not (other.is_over or other.is_dropped))
            self._open = [*going, turn]
        return turn

    def check_thread(self) -> None:
        """Raise UsageError if waiting for another thread's generation would be a deadlock: this
        thread holds all places, or is within a call of the engine."""
        if self._users.is_inside:
            raise UsageError(_WITHIN)
        running = [turn.thread for turn in self._line if turn.has_place]
        if running.count(threading.get_ident()) == self._engine.n_texts:
            raise UsageError(_UNDER_WAY)

    @contextmanager
    def running(self, turn: Turn) -> Iterator[Generator[TokenEvent, None, None]]:
        """Context manager that waits for a place and gives the iterator over the turn's tokens.

        Raises Cancelled if the request was cancelled while waiting, SessionClosed, and UsageError
        if this thread would wait for itself.
        """
        if self._users.is_inside:
            raise UsageError(_WITHIN)
        with self._users.use():
            self._wait_for(turn)
            if turn.events is None:
                assert turn.request is not None
                turn.events = self._engine.run(turn.request)
            yield turn.events

    def leave(self, turn: Turn) -> None:
        """End the turn, finished or not; no effect while the session is closing."""
        with suppress(SessionClosed), self._users.use():
            try:
                if turn.events is not None:
                    turn.events.close()
            finally:
                turn.is_over = True
                if turn.request is not None:
                    turn.request.forget_grammar()
                with self._change:
                    if turn in self._line:
                        self._line.remove(turn)
                    self._change.notify_all()

    def cancel(self, request: ActiveRequest | None = None) -> None:
        """End `request` soon, or all active ones; callable from any thread."""
        for turn in list(self._open):
            if request is None or turn.request is request:
                self._engine.cancel(turn.request)
        with self._change:
            self._change.notify_all()

    def close(self) -> None:
        """Cancel all requests, wait for them, and free the models.

        Idempotent; callable from any thread.
        """
        self._users.close(self.cancel, self._release)

    def _release(self) -> None:
        waiting = (turn.events.close for turn in self._line if turn.events is not None)
        close_all(*waiting, self._engine.close, self._release_models)

    def _wait_for(self, turn: Turn) -> None:
        """Wait until `turn` may run."""
        turn.thread = threading.get_ident()
        with self._change:
            try:
                if turn not in self._line:
                    self._line.append(turn)
                while not self._may_begin(turn):
                    dropped = next((other for other in self._line if other.is_dropped), None)
                    if dropped is not None:
                        self._drop(dropped)
                    elif self._waits_for_itself(turn):
                        raise UsageError(_UNDER_WAY)
                    else:
                        self._check_waiting(turn)
                        self._change.wait(POLL_S)
                turn.has_place = True
            except BaseException:
                if turn.events is None and turn in self._line:
                    turn.has_place = False
                    self._line.remove(turn)
                    self._change.notify_all()
                raise

    def _may_begin(self, turn: Turn) -> bool:
        """True if it runs already, or if a place is free that no earlier turn takes and the
        session is not closing."""
        if turn.has_place or self._users.is_closing:
            return turn.has_place
        going = [other for other in self._line if other.has_place]
        n_places = self._engine.n_texts - len(going)
        n_grammars = self._n_grammars - sum(other.has_grammar for other in going)
        for other in self._line:
            if other.request is None:
                return turn is self._line[0]
            fits = n_places > 0 and n_grammars >= other.has_grammar
            if other is turn:
                return fits and self._engine.has_place_for(other.request)
            if fits and not other.has_place:
                n_places -= 1
                n_grammars -= other.has_grammar
        return False

    def _waits_for_itself(self, turn: Turn) -> bool:
        """True if this thread holds every place that the turn could get."""
        going = [other for other in self._line if other.has_place]
        holders = [other for other in going if other.has_grammar]
        if not turn.has_grammar or len(holders) < self._n_grammars:
            holders = going
        return bool(holders) and all(other.thread == turn.thread for other in holders)

    def _drop(self, turn: Turn) -> None:
        """Close and remove a turn whose generation was garbage-collected."""
        if turn.events is not None:
            turn.events.close()
        self._line.remove(turn)
        self._change.notify_all()

    def _check_waiting(self, turn: Turn) -> None:
        if self._users.is_closing:
            raise SessionClosed("the session was closed before it was this generation's turn")
        if turn.request is not None:
            turn.request.check_cancelled()
