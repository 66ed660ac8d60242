"""The engine's thread: it owns the models, their slots and the one queue of requests.

Knows in which order requests begin and when a pass is made; `loop` makes it.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from edgespec.concurrency.owning import POLL_S, Closeable, Users, close_all
from edgespec.engine.loop import Loop
from edgespec.engine.queued_work import QueuedWork
from edgespec.engine.request import ActiveRequest
from edgespec.engine.slot import Slot, choose_slot
from edgespec.errors import Cancelled, SessionClosed, UsageError

T = TypeVar("T")

GATHERING_SHARE = 0.02
"""Fraction of the usual pass time for which a pass waits for new texts after places became free, as
a text that begins later waits for a whole pass."""
STORING_S = 5.0
"""Longest time in which texts are stored before the thread ends."""
_WITHIN = (
    "this thread is within a call of the session and would wait for itself: do it when the call "
    "has come back"
)


class Scheduler(Closeable):
    """Runs as many requests at a time as there are slots, in order of arrival, in one thread.

    A request keeps its slot until its text ends. Requests without a grammar may overtake those
    that wait for memory for grammars. A pass is made while somebody waits for a token; it serves
    all active texts. Texts of a thread that waits in line are written to their end, as it would
    wait for itself otherwise.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        loop: Loop,
        users: Users,
        n_grammars: int,
        release: Callable[[], None],
    ) -> None:
        """At most `n_grammars` requests with grammars run at a time. `close` ends the thread and
        closes the loop, and then calls `release`."""
        self._slots = slots
        self._loop = loop
        self._users = users
        self._n_grammars = n_grammars
        self._release_models = release
        self._line: list[ActiveRequest] = []
        """Waiting requests, in order of arrival."""
        self._after_pass: deque[QueuedWork] = deque()
        """Work that waits for the end of a pass."""
        self._at_work: list[Slot] = []
        """Slots whose texts are written now, in the order in which they began."""
        self._open: weakref.WeakSet[ActiveRequest] = weakref.WeakSet()
        """Requests that `cancel` reaches."""
        self._changing = threading.RLock()
        """Held while a request begins, ends or is cancelled, so that a cancellation cannot stop the
        models of the next request. Never held during a call of a model."""
        self._wakes: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread; signal handlers and the garbage collector may put."""
        self._gathers_until = 0.0
        """Time until which the next pass waits for texts that begin."""
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._at_exit = partial(_stop, weakref.ref(self))

    @property
    def is_closed(self) -> bool:
        return self._users.is_released

    @property
    def is_forked(self) -> bool:
        """True in a fork of the process, which has none of its threads."""
        return self._users.is_forked

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._line)

    def use(self) -> AbstractContextManager[None]:
        """Context manager for a use of the models' vocabularies. Raises SessionClosed."""
        return self._users.use()

    def within(self) -> AbstractContextManager[None]:
        """Context manager for a callback, in which the engine cannot be closed."""
        return self._users.within()

    def waiting(self) -> AbstractContextManager[None]:
        """Context manager for a thread that waits for the engine's. Raises SessionClosed, also once
        the process ends, and UsageError in a callback of the engine."""
        if self._users.is_inside:
            raise UsageError(_WITHIN)
        return self._users.use()

    def open(self, request: ActiveRequest) -> None:
        """Let `cancel` reach a request, which is not in line yet."""
        with self._changing:
            self._open.add(request)

    def want(self, request: ActiveRequest) -> None:
        """Ask for the request's next token, which its `deliver` gets; the first time, it joins the
        line."""
        request.thread = threading.get_ident()
        is_new = not request.is_queued
        request.is_queued = request.is_wanted = True
        if is_new:
            with self._changing:
                self._line.append(request)
        self._wake()

    def after_pass(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done by the engine's thread, after the pass that it makes; does not wait.

        Raises SessionClosed.
        """
        with self._users.use():
            queued = QueuedWork(work)
            self._after_pass.append(queued)
            self._wake()
        return queued.done

    def cancel(self, request: ActiveRequest | None = None) -> None:
        """End `request`, or all, soon with the reason "cancelled"; callable from any thread."""
        with self._changing:
            running = [slot.request for slot in self._at_work]
            for each in list(self._open) if request is None else [request]:
                each.cancelled.set()
            is_at_work = request is None or request in running
            if is_at_work and all(each.cancelled.is_set() for each in running):
                for slot in self._slots:
                    slot.cancel()
        self._wakes.put(None)

    def leave(self, request: ActiveRequest) -> None:
        """End a request that nobody reads any more; it has `ended` soon. Callable by the garbage
        collector."""
        request.is_left = True
        if not request.is_queued or self._is_stopping:
            request.ended.set()
        self._wakes.put(None)

    def close(self) -> None:
        """Cancel all requests, wait for them, end the thread and release the models.

        Idempotent; callable from any thread.
        """
        self._users.close(self.cancel, self._release)

    def __del__(self) -> None:
        if wakes := getattr(self, "_wakes", None):
            wakes.put(None)

    def _release(self) -> None:
        close_all(self.stop, self._loop.close, self._release_models)

    def stop(self) -> None:
        """End the thread and all requests."""
        self._is_stopping = True
        atexit.unregister(self._at_exit)
        while self._thread is not None and self._thread.is_alive():
            with suppress(KeyboardInterrupt):  # freeing memory in use would crash the process
                self.cancel()
                self._thread.join(POLL_S)
        self._end_all(SessionClosed("the session is closed"))

    def _wake(self) -> None:
        if self._is_stopping:
            raise SessionClosed("the process is ending: the session writes no more")
        if self._thread is None:
            with self._changing:
                if self._thread is None:
                    atexit.register(self._at_exit)
                    self._thread = threading.Thread(
                        target=_serve,
                        args=(weakref.ref(self), self._wakes),
                        name="edgespec-engine",
                        daemon=True,
                    )
                    self._thread.start()
        self._wakes.put(None)

    # The methods below run in the engine's thread

    def serve(self) -> bool:
        """Work until nothing is wanted; False if the thread should end."""
        while not self._is_stopping:
            try:
                self._settle()
                if not self._is_wanted:
                    if self._store_block():
                        continue
                    return True
                if not self._gathers():
                    self._advance()
                    self._store_block()
            except BaseException as error:  # noqa: BLE001 - raised to the consumers
                self._end_all(error)
        self._store_rest()
        return False

    def _store_block(self) -> bool:
        """Store a block of a text that is not stored yet; False if there is none."""
        return any(slot.store_block() for slot in self._slots)

    def _store_rest(self) -> None:
        """Store what is not stored yet, as far as the time for it suffices."""
        until = self._loop.clock() + STORING_S
        with suppress(Exception):
            while self._loop.clock() < until and self._store_block():
                pass

    def _settle(self) -> None:
        """End the texts that need no further pass, and begin those that have a slot now."""
        while self._after_pass:
            self._after_pass.popleft().do()
        self._end_finished()
        if self._line:
            self._turn_away()
            while self._begin_next():
                self._end_finished()

    def _end_finished(self) -> None:
        for slot in [*self._at_work]:
            if slot.request.is_left or slot.request.cancelled.is_set():
                slot.fail(Cancelled("the generation was cancelled"))
            if not slot.is_at_work:
                self._end(slot)

    @property
    def _is_wanted(self) -> bool:
        """True if somebody waits for a pass."""
        requests = [slot.request for slot in self._at_work]
        if any(request.is_wanted or request.terms.runs_ahead for request in requests):
            return True
        in_line = {entry.thread for entry in [*self._line]}
        return bool(in_line) and any(request.thread in in_line for request in requests)

    def _gathers(self) -> bool:
        """Wait for requests that begin in free slots; False if the pass should not wait longer."""
        gathers_s = self._gathers_until - self._loop.clock()
        if gathers_s <= 0 or not any(slot.is_free for slot in self._slots):
            return False
        try:
            self._wakes.get(timeout=gathers_s)
        except Empty:
            self._gathers_until = 0.0
        return True

    def _gather(self) -> None:
        """Let the next pass wait for requests that begin in the free slots."""
        if len(self._slots) > 1:
            self._gathers_until = self._loop.clock() + GATHERING_SHARE * self._loop.usual_pass_s

    def _advance(self) -> None:
        slots = [*self._at_work]
        try:
            self._loop.advance(slots)
        except BaseException as error:  # noqa: BLE001 - raised to the consumers
            for slot in slots:
                slot.fail(error)
        for slot in slots:
            if slot.events:
                _deliver(slot)

    def _turn_away(self) -> None:
        """Remove what does not wait any longer."""
        for entry in [*self._line]:
            if self._users.is_closing:
                error: BaseException = SessionClosed(
                    "the session was closed before it was this generation's turn"
                )
            elif entry.is_left or entry.cancelled.is_set():
                error = Cancelled("the generation was cancelled")
            else:
                continue
            self._line.remove(entry)
            _let_go(entry, error)

    def _begin_next(self) -> bool:
        """Begin the first in line that has a slot and memory for its grammar; False if none has."""
        n_free = sum(slot.is_free for slot in self._slots)
        n_grammars = self._n_grammars - sum(slot.request.has_grammar for slot in self._at_work)
        for entry in [*self._line]:
            if n_free > 0 and n_grammars >= entry.has_grammar:
                self._begin(entry)
                return True
        return False

    def _begin(self, request: ActiveRequest) -> None:
        try:
            slot = choose_slot(self._slots, request)
            slot.begin_text(request)
        except BaseException as error:  # noqa: BLE001 - raised to the consumer
            self._line.remove(request)
            _let_go(request, error)
            return
        if not self._at_work:
            self._gather()
        with self._changing:
            self._line.remove(request)
            self._at_work.append(slot)

    def _end(self, slot: Slot) -> None:
        """End a text and free its slot."""
        request = slot.request
        try:
            self._loop.end(slot)
        except BaseException as error:  # noqa: BLE001 - raised to the consumer
            slot.fail(error)
        _deliver(slot)
        with self._changing:
            slot.end_text()
            self._at_work.remove(slot)
        self._gather()
        _let_go(request, request.failure)

    def _end_all(self, error: BaseException) -> None:
        for slot in [*self._at_work]:
            slot.fail(error)
            self._end(slot)
        while self._line:
            _let_go(self._line.pop(0), error)
        while self._after_pass:
            self._after_pass.popleft().give_up(error)


def _serve(scheduler: weakref.ref[Scheduler], wakes: SimpleQueue[None]) -> None:
    """Run the engine's thread, which ends with a scheduler that is no longer referenced."""
    while (found := scheduler()) is not None and found.serve():
        del found
        wakes.get()


def _deliver(slot: Slot) -> None:
    """Give the accepted tokens to their consumer."""
    events, slot.events = slot.events, []
    slot.request.is_wanted = False
    if events:
        slot.request.deliver(events)


def _let_go(request: ActiveRequest, error: BaseException | None) -> None:
    """Tell the consumer that the text has ended."""
    request.transcript.cancel()
    request.forget_grammar()
    request.failure = error
    request.ended.set()
    request.deliver(())


def _stop(scheduler: weakref.ref[Scheduler]) -> None:
    """End the thread with the process: native code must not run while its library is unloaded."""
    if (found := scheduler()) is not None and not found.is_forked:
        found.stop()
