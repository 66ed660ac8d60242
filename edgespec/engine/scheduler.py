"""The engine's thread: it owns the models, the slots and the one inbox.

Knows in which order texts begin and when a pass is made; `engine` makes it.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from edgespec.concurrency.owning import POLL_S, Closeable, Users, close_all
from edgespec.concurrency.worker import fulfil
from edgespec.engine.slot import Slot, choose_slot
from edgespec.engine.text import Text, ending
from edgespec.errors import Cancelled, EdgespecError, SessionClosed

T = TypeVar("T")

GATHERING_S = 0.003
"""Time for which a pass waits for new texts after one began or ended, as a text that comes later
waits for a whole pass."""
STORING_S = 5.0
"""Longest time in which texts are stored before the thread ends."""


Message = Callable[["Scheduler"], None]
"""A call that the engine's thread makes between passes."""


def wake(scheduler: Scheduler) -> None:
    """A message that says nothing."""


class Scheduler(Closeable):
    """Writes as many texts at a time as there are slots, in order of arrival, in one thread.

    Whoever asks puts a message into the inbox, which is read between passes. A text keeps its slot
    until it ends. Texts without a grammar may overtake those that wait for memory for grammars. A
    pass is made while somebody waits for a token; it serves all active texts. Texts of a thread
    that waits in line are written to their end, as it would wait for itself otherwise.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        clock: Callable[[], float],
        users: Users,
        n_grammars: int,
        cancels: Sequence[Callable[[], None]],
        release: Callable[[], None],
    ) -> None:
        """At most `n_grammars` texts with grammars run at a time. `cancels` make running calls of
        models raise Cancelled soon. `close` ends the thread and then calls `release`."""
        self.slots, self._info = slots, slots[0].target.info
        self.clock = clock
        self._users = users
        self._n_grammars = n_grammars
        self._cancels, self._release_models = cancels, release
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        """Messages; signal handlers and the garbage collector may put."""
        self._line: list[Text] = []
        """Waiting texts, in order of arrival."""
        self._active: list[Text] = []
        """Texts that are written now, in the order in which they began."""
        self._open: weakref.WeakSet[Text] = weakref.WeakSet()
        """Texts that `cancel` reaches."""
        self._lock = threading.RLock()  # a signal's handler may cancel in the midst of it
        """Guards the start of the thread, `_open` and `_in_pass`; never held in a model's call."""
        self._in_pass: Sequence[Text] = ()
        """Texts for which the models work now."""
        self._gathers_until = 0.0
        """Time until which the next pass waits for texts that begin."""
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._at_exit = partial(_stop, weakref.ref(self))

    # Parts of the engine

    @abstractmethod
    def begin(self, text: Text) -> None:
        """Begin a text in its slot."""

    @abstractmethod
    def step(self, texts: Sequence[Text]) -> None:
        """Make one pass for `texts`."""

    @abstractmethod
    def end(self, text: Text) -> None:
        """Drop everything provisional of a text that needs no further pass."""

    # In the engine's thread

    def run(self) -> bool:
        """Make passes as long as somebody waits for one; False if the thread should end."""
        while not self._is_stopping:
            try:
                self._read_inbox()
                self._end_finished()
                self._begin_waiting()
                if self._gathering_s:
                    continue
                if is_wanted := self._is_wanted:
                    texts = self._with_cells()
                    with self._passing(texts):
                        self.step(texts)
                if not self._store_block() and not is_wanted:
                    return True
            except BaseException as error:  # noqa: BLE001 - raised to the consumers
                self._end_all(error)
        until = self.clock() + STORING_S
        with suppress(Exception):
            while self.clock() < until and self._store_block():
                pass
        return False

    @property
    def _gathering_s(self) -> float:
        """Seconds for which the next pass waits for texts that begin in free slots."""
        has_room = len(self.slots) > 1 and any(slot.is_free for slot in self.slots)
        return max(0.0, self._gathers_until - time.monotonic()) if has_room else 0.0

    def _read_inbox(self) -> None:
        """Do what the messages say; waits for them while texts are gathered."""
        with suppress(Empty):
            while True:
                gathering_s = self._gathering_s
                self._inbox.get(gathering_s > 0, gathering_s)(self)

    @property
    def _is_wanted(self) -> bool:
        """True if somebody waits for a pass."""
        if any(text.is_wanted or text.terms.runs_ahead for text in self._active):
            return True
        in_line = {text.thread for text in self._line}
        return any(text.thread in in_line for text in self._active)

    @contextmanager
    def _passing(self, texts: Sequence[Text]) -> Iterator[None]:
        """Context manager of a pass for `texts`, whose errors end them; delivers what came."""
        with self._lock:
            self._in_pass = texts
        try:
            yield
        except Cancelled:
            for text in texts:  # a text that goes on discards the interrupted pass
                with ending([text]):
                    text.check_cancelled()
                    text.slot.discard()
        except BaseException as error:  # noqa: BLE001 - raised to the consumers
            for text in texts:
                text.fail(error)
        with self._lock:
            self._in_pass = ()
        for text in texts:
            _deliver(text)

    def _store_block(self) -> bool:
        """Store a block of a text that is not stored yet; False if there is none."""
        return any(slot.store_block() for slot in self.slots)

    def _with_cells(self) -> list[Text]:
        """The active texts that have KV cells for a pass, the eldest first, which has all that it
        may need, since one whole context fits.

        The others rest. Where elder ones need their cells they are set back, and so the oldest kept
        texts go.
        """
        n_cells, found = self._info.n_cells, list[Text]()
        if not n_cells:
            return [*self._active]
        for text in self._active:
            n_needed = self._n_cells(text.n_cells)
            if n_needed <= n_cells:
                found.append(text)
            else:
                text.slot.discard()
                n_needed = self._n_cells(len(text.slot.committed))
                if n_needed > n_cells:
                    text.set_back()
                    n_needed = 0
            n_cells -= n_needed
        kept = sorted((slot for slot in self.slots if slot.is_free), key=lambda slot: slot.begun)
        for n, slot in enumerate(kept):
            if sum(self._n_cells(len(other.committed)) for other in kept[n:]) > n_cells:
                slot.forget()
        return found

    def _n_cells(self, n_tokens: int) -> int:
        """Cells of a text of so many tokens, which begins with a tile if prompts are read in
        tiles."""
        info = self._info
        n_cells = min(n_tokens, info.n_ctx) + info.prompt_tile
        return min(n_cells, info.n_cells) if n_tokens else 0

    def _begin_waiting(self) -> None:
        """Begin texts in line as far as slots, KV cells and memory for grammars are free, and
        remove those that do not wait any longer."""
        has_cells = True
        for text in [*self._line]:
            n_grammars = text.has_grammar + sum(one.has_grammar for one in self._active)
            if self._users.is_closing:
                closed = "the session was closed before it was this generation's turn"
                self._let_go(text, SessionClosed(closed))
            elif text.is_cancelled:
                self._let_go(text, Cancelled("the generation was cancelled"))
            elif n_grammars <= self._n_grammars and any(slot.is_free for slot in self.slots):
                n_needed = sum(self._n_cells(one.n_cells) for one in (*self._active, text))
                if self._info.n_cells and n_needed > self._info.n_cells:
                    has_cells = False  # nobody overtakes a text that waits for cells
                if has_cells:
                    self._begin(text)
                    self._end_finished()

    def _begin(self, text: Text) -> None:
        try:
            text.slot = choose_slot(self.slots, text)
            self.begin(text)
        except BaseException as error:  # noqa: BLE001 - raised to the consumer
            self._let_go(text, error)
            return
        self._line.remove(text)
        self._gathers_until = time.monotonic() + GATHERING_S
        text.slot.is_free, text.slot.begun = False, self.clock()
        self._active.append(text)

    def _end_finished(self) -> None:
        for text in [*self._active]:
            with ending([text]):
                text.check_cancelled()
            if not text.is_at_work:
                self._let_go(text)

    def _let_go(self, text: Text, error: BaseException | None = None) -> None:
        """End a text, in line or in its slot, and tell its consumer."""
        if error is not None:
            text.fail(error)
        if text in self._active:
            try:
                self.end(text)
            except BaseException as failure:  # noqa: BLE001 - raised to the consumer
                text.fail(failure)
            _deliver(text)
            text.slot.is_free = True
            self._active.remove(text)
            self._gathers_until = time.monotonic() + GATHERING_S
        else:
            self._line.remove(text)
        text.transcript.cancel()
        text.forget_grammar()
        text.ended.set()
        text.deliver(())

    def _end_all(self, error: BaseException) -> None:
        for text in [*self._active, *self._line]:
            self._let_go(text, error)

    # From any thread

    @property
    def is_closed(self) -> bool:
        return self._users.is_released

    @property
    def n_waiting(self) -> int:
        """Number of texts that wait."""
        with self._lock:
            return sum(text.is_waiting for text in self._open)

    def use(self) -> AbstractContextManager[None]:
        """Context manager for a use of the models' vocabularies. Raises SessionClosed."""
        return self._users

    def want(self, text: Text) -> None:
        """Ask for the text's next token, which its `deliver` gets; the first time, it joins the
        line."""
        text.thread, text.is_wanted = threading.get_ident(), True
        self._tell(wake if text.is_queued else lambda scheduler: scheduler._line.append(text))
        text.is_queued = True

    def after_pass(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done by the engine's thread, after the pass that it makes; does not wait.

        Raises SessionClosed.
        """
        done: Future[T] = Future()
        with self._users:
            self._tell(lambda _: fulfil(done, work))
        return done

    def cancel(self, text: Text | None = None) -> None:
        """End `text`, or all, soon with the reason "cancelled"; callable from any thread."""
        with self._lock:
            for each in list(self._open) if text is None else [text]:
                each.is_cancelled = True
            if self._in_pass and all(each.is_cancelled for each in self._in_pass):
                for cancel in self._cancels:
                    cancel()
        self._inbox.put(wake)

    def leave(self, text: Text) -> None:
        """End a text that nobody reads any more; it has `ended` soon. Callable by the garbage
        collector."""
        text.is_cancelled = True
        if not text.is_queued or self._is_stopping:
            text.ended.set()
        self._inbox.put(wake)

    def close(self) -> None:
        """Cancel all texts, wait for them, end the thread and release the models.

        Idempotent; callable from any thread.
        """
        self._users.close(self.cancel, lambda: close_all(self.stop, self._release_models))

    def __del__(self) -> None:
        if inbox := getattr(self, "_inbox", None):
            inbox.put(wake)

    def stop(self) -> None:
        """End the thread and all texts."""
        self._is_stopping = True
        atexit.unregister(self._at_exit)
        while self._thread is not None and self._thread.is_alive():
            with suppress(KeyboardInterrupt):  # freeing memory in use would crash the process
                self.cancel()
                self._thread.join(POLL_S)
        self._read_inbox()  # texts that were about to join the line are ended, too
        self._end_all(SessionClosed("the session is closed"))

    def _tell(self, message: Message) -> None:
        """Put a message into the inbox of the thread, which begins with the first one."""
        if self._is_stopping:
            raise SessionClosed("the process is ending: the session writes no more")
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=_serve,
                    args=(weakref.ref(self), self._inbox),
                    name="edgespec-engine",
                    daemon=True,
                )
                try:
                    thread.start()
                except RuntimeError as error:
                    raise EdgespecError(
                        f"the session's thread cannot be started ({error}): let this user or "
                        "container have more threads (ulimit -u, pids.max)"
                    ) from error
                self._thread = thread
                atexit.register(self._at_exit)
        self._inbox.put(message)


def _serve(reference: weakref.ref[Scheduler], inbox: SimpleQueue[Message]) -> None:
    """Run the engine's thread, which ends with a scheduler that is no longer referenced."""
    while (found := reference()) is not None and found.run():
        del found
        message = inbox.get()
        if (found := reference()) is not None:
            message(found)
        del message


def _deliver(text: Text) -> None:
    """Give the accepted tokens to their consumer."""
    events, text.events = text.events, []
    if events:
        text.is_wanted = False
        text.deliver(events)


def _stop(reference: weakref.ref[Scheduler]) -> None:
    """End the thread with the process: native code must not run while its library is unloaded."""
    if (found := reference()) is not None and not found._users.is_forked:
        found.stop()
