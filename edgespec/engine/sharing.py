"""One engine for many generations: turns in line, and closing while some run.

Knows requests and threads, and no tokens.
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
    """A request's place in line, from its first token to its end."""

    request: ActiveRequest | None = None
    """None for work between two texts."""
    events: Generator[TokenEvent, None, None] | None = None
    """Tokens to come; None before the turn has begun."""
    thread: int | None = None
    """Identifier of the thread that advanced it last, and that has the turn between two tokens."""
    has_place: bool = False
    """True from the moment at which it may begin."""
    is_over: bool = False
    is_dropped: bool = False
    """True if nobody refers to its generation any more: the next in line closes it."""

    @property
    def has_grammar(self) -> bool:
        return self.request is not None and self.request.terms.constraint is not None


class SharedEngine(Closeable):
    """Lets as many requests have the engine as it has texts, in the order of their first tokens.

    A request has a text until it ends, between its tokens, too. Later ones wait; where memory for
    grammars is lacking, those without pass by. A thread that would wait for itself gets a
    UsageError.
    """

    def __init__(
        self, engine: Engine, release: Callable[[], None], n_grammars: int | None = None
    ) -> None:
        """`release` frees the models, which are the caller's until `close`; requests with grammars
        run `n_grammars` at a time."""
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
        """Turns in line for which there is no place yet."""
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
        """Context manager for work with the models between two texts; waits in line.

        Raises SessionClosed, and UsageError where this thread has a generation under way.
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
        """A turn for `request`, not yet in line; from now on `cancel` reaches it."""
        turn = Turn(request)
        with self._change:
            going = (other for other in self._open if not (other.is_over or other.is_dropped))
            self._open = [*going, turn]
        return turn

    def check_thread(self) -> None:
        """Raise UsageError where this thread has the engine, or is within a call of it: it would
        wait for itself if it waited for another thread's generation."""
        if self._users.is_inside:
            raise UsageError(_WITHIN)
        running = [turn.thread for turn in self._line if turn.has_place]
        if running.count(threading.get_ident()) == self._engine.n_texts:
            raise UsageError(_UNDER_WAY)

    @contextmanager
    def running(self, turn: Turn) -> Iterator[Generator[TokenEvent, None, None]]:
        """Tokens to come, once there is a place for the turn; the block may take some of them.

        Raises Cancelled for one that was cancelled in line, SessionClosed, and UsageError where
        this thread has the engine already.
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
        """End the turn, whatever is left of it; a session that is closing does so itself."""
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
        """From any thread: end `request` soon, or all that have not ended."""
        for turn in list(self._open):
            if request is None or turn.request is request:
                self._engine.cancel(turn.request)
        with self._change:
            self._change.notify_all()

    def close(self) -> None:
        """Cancel what runs, wait for it, free the models. Idempotent, from any thread."""
        self._users.close(self.cancel, self._release)

    def _release(self) -> None:
        waiting = (turn.events.close for turn in self._line if turn.events is not None)
        close_all(*waiting, self._engine.close, self._release_models)

    def _wait_for(self, turn: Turn) -> None:
        """Come back when there is a place for `turn`: the engine's all for work between texts."""
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
        """True if it runs already, or if there is a place for it that nobody before it takes and
        the session is not closing."""
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
        """True if this thread has every place for which the turn could wait."""
        going = [other for other in self._line if other.has_place]
        holders = [other for other in going if other.has_grammar]
        if not turn.has_grammar or len(holders) < self._n_grammars:
            holders = going
        return bool(holders) and all(other.thread == turn.thread for other in holders)

    def _drop(self, turn: Turn) -> None:
        """Remove a turn whose generation nobody refers to any more."""
        if turn.events is not None:
            turn.events.close()
        self._line.remove(turn)
        self._change.notify_all()

    def _check_waiting(self, turn: Turn) -> None:
        if self._users.is_closing:
            raise SessionClosed("the session was closed before it was this generation's turn")
        if turn.request is not None:
            turn.request.check_cancelled()
