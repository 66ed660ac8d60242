"""The models of a server: which are in memory, and which requests wait for which.

All share one budget. If it holds all of them, each is loaded once and stays. Otherwise a model
that writes texts has it for itself, but for room that it may leave to one embedding model; the
model that is asked for is loaded once requests to those that have to leave for it have ended. One
event loop owns this; knows no HTTP and no memory.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from edgespec.completions.protocols.model_names import HostedModel, model_named, not_loaded
from edgespec.completions.refusals import RETRY_AFTER_S, Refusal, overloaded
from edgespec.concurrency.owning import close_all
from edgespec.errors import Cancelled, EdgespecError
from edgespec.ports import Progress
from edgespec.session.asynchronous import in_thread
from edgespec.values import PagingStats

Place = str
"""Place of a model: `alone` with the budget for itself, `beside` in the room that another one
leaves, or one of its own, by its name."""


class HeldModel(Protocol):
    """Protocol of a session or an embedder."""

    @property
    def paging(self) -> PagingStats: ...

    def cancel(self) -> None:
        """End what it is computing, from any thread."""

    def close(self) -> None: ...


class Served(Protocol):
    """Protocol of a loaded model."""

    leaves_room: bool
    """True if an embedding model may be in memory beside it."""

    @property
    def model(self) -> HeldModel: ...


@dataclass(slots=True, eq=False)
class _Seat:
    model: HostedModel
    served: Any
    n_users: int = 0


@dataclass(slots=True, eq=False)
class _Waiting:
    model: HostedModel
    seat: asyncio.Future[_Seat]


class ModelHost:
    """Loads the models that are asked for, in turn."""

    def __init__(
        self,
        models: Sequence[HostedModel],
        load: Callable[[HostedModel, bool, Progress], Served],
        on_change: Callable[[Served], None] = lambda _: None,
        together: bool = False,
    ) -> None:
        """`load` is called in a thread with a model, true if it is to be beside another one, and a
        callback that raises Cancelled once the server ends. `on_change` is told each model that
        then has the budget for itself. With `together`, all stay once they are loaded."""
        self.models = tuple(models)
        self.together = together
        self.n_loads = 0
        """Number of models loaded so far."""
        self._load = load
        self._on_change = on_change
        self._seats: dict[Place, _Seat] = {}
        self._waiting: list[_Waiting] = []
        self._loading: HostedModel | None = None
        self._progress = ("", 0.0)
        self._change: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = False
        self._left = PagingStats()
        """Totals of the models that have left."""

    def seat(self, model: HostedModel, served: Served) -> None:
        """Take in a model that is loaded already."""
        self._seats[self._places(model)[0]] = _Seat(model, served)
        self._on_change(served)

    @property
    def current(self) -> Any:
        """The loaded model that writes texts, otherwise any; None if there is none."""
        return self._first.served if self._seats else None

    @property
    def paging(self) -> PagingStats:
        """Passes, bytes and stalls of all models since the server began."""
        total = self._left
        for seat in self._seats.values():
            total = _added(total, seat.served.model.paging)
        return total

    def named(self, name: str | None, embeds: bool | None = None) -> HostedModel:
        """The model that a request names, see `model_named`. Raises Refusal."""
        return model_named(self.models, name, embeds)

    def served(self, model: HostedModel) -> Any:
        """The loaded model; None while it is not in memory."""
        seat = self._seat_of(model)
        return seat.served if seat else None

    def is_ready(self, model: HostedModel) -> bool:
        """True if a request to `model` need not wait for a change of models."""
        return self._seat_of(model) is not None and not self._waiting

    def state(self, model: HostedModel) -> dict[str, Any]:
        """The state of a model, as llama.cpp's router tells it, with the progress of loading."""
        if model is self._loading:
            doing, share = self._progress
            return {"value": "loading", "doing": doing, "progress": round(share, 3)}
        if self._seat_of(model) is not None:
            return {"value": "loaded"}
        failed = {"failed": True, "error": model.error} if model.error else {}
        return {"value": "unloaded", **failed}

    def told_progress(self, model: HostedModel) -> str:
        """Words about the work until `model` answers, for people."""
        if self._loading is None:
            return f"{model.name} waits for the requests to the model before it"
        doing, share = self._progress
        return f"{self._loading.name}: {doing or 'loading'} {share:.0%}"

    @asynccontextmanager
    async def using(self, model: HostedModel, wait_s: float | None = None) -> AsyncIterator[Any]:
        """The loaded model, which stays in memory until the block ends.

        Waits for its turn, for `wait_s` seconds at most. Raises Refusal if that is not enough and
        if the model cannot be loaded.
        """
        seat = await self._seated(model, wait_s)
        try:
            yield seat.served
        finally:
            self._leave(seat)

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Context manager in which `current`, of which there is one, stays in memory."""
        seat = self._first
        seat.n_users += 1
        try:
            yield
        finally:
            self._leave(seat)

    def stop(self) -> None:
        """End what is being loaded and computed, from any thread; nobody waits any longer."""
        self._is_ending = True
        for seat in list(self._seats.values()):
            seat.served.model.cancel()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._arrange)

    def close(self) -> None:
        """Close the loaded models, once the event loop has ended."""
        self._is_ending = True
        close_all(*self._taken_out(list(self._seats)))

    @property
    def _first(self) -> _Seat:
        return min(self._seats.values(), key=lambda seat: seat.model.embeds)

    async def _seated(self, model: HostedModel, wait_s: float | None) -> _Seat:
        if model.is_unusable:
            raise not_loaded(model.name, str(model.error))
        self._loop = asyncio.get_running_loop()
        waiting = _Waiting(model, self._loop.create_future())
        self._waiting.append(waiting)
        self._arrange()
        try:
            if wait_s is not None and not waiting.seat.done():
                await asyncio.wait({waiting.seat}, timeout=wait_s)
                if not waiting.seat.done():
                    raise self._busy(model)
            return await waiting.seat
        except BaseException:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            is_answered = waiting.seat.done() and not waiting.seat.cancelled()
            if is_answered and waiting.seat.exception() is None:  # cancelled at the same moment
                self._leave(waiting.seat.result())
            raise

    def _busy(self, model: HostedModel) -> Refusal:
        """The refusal of a request that would not wait; the model is loaded meanwhile."""
        refusal = overloaded(
            self.told_progress(model), "loading", max(RETRY_AFTER_S, round(model.load_s))
        )
        _, share = self._progress
        refusal.headers["X-Loading-Progress"] = f"{share:.3f}"
        refusal.figures["progress_percent"] = round(100 * share)
        return refusal

    def _leave(self, seat: _Seat) -> None:
        seat.n_users -= 1
        self._arrange()

    def _arrange(self) -> None:
        """Seat requests whose models are loaded, and begin the change that the first other needs.

        Requests behind that one wait even if their model is loaded, so that none waits for ever.
        """
        blocked: set[Place] = set()
        wanted: HostedModel | None = None
        for waiting in list(self._waiting):
            place = self._place_of(waiting.model)
            if self._is_ending:
                self._answer(waiting, Cancelled("the server is shutting down"))
            elif place is not None and place not in blocked:
                self._answer(waiting, self._seats[place])
            else:
                blocked.update(self._places(waiting.model))
                wanted = wanted or waiting.model
        if wanted is None or self._change is not None:
            return
        leaving = [place for place in self._places(wanted) if place in self._seats]
        if not any(self._seats[place].n_users for place in leaving):
            self._change = asyncio.ensure_future(self._switch(wanted, leaving))

    def _answer(self, waiting: _Waiting, found: _Seat | BaseException) -> None:
        self._waiting.remove(waiting)
        if waiting.seat.done():  # cancelled, and its task has not run since
            return
        if isinstance(found, _Seat):
            found.n_users += 1
            waiting.seat.set_result(found)
        else:
            waiting.seat.set_exception(found)

    async def _switch(self, model: HostedModel, leaving: list[Place]) -> None:
        """Unload the models at `leaving`, load `model`, and seat all who wait for it."""
        place = self._places(model)[0]
        self._loading, self._progress = model, ("unloading", 0.0)
        began = time.monotonic()
        failure: str | None = None
        closes = self._taken_out(leaving)  # here, so that no request is seated there any more
        try:
            served = await in_thread(lambda: self._replaced(model, closes, place), self.stop)
        except Exception as error:  # noqa: BLE001 - those who wait for the model are told
            failure = _told(error)
        else:
            self._seats[place] = _Seat(model, served)
            self.n_loads += 1
            model.load_s = time.monotonic() - began
            if place != "beside":
                self._on_change(served)
        finally:
            self._loading = self._change = None
        model.error = None if self._is_ending else failure
        for waiting in [one for one in self._waiting if one.model is model]:
            if failure is None:
                self._answer(waiting, self._seats[place])
            elif not self._is_ending:
                self._answer(waiting, not_loaded(model.name, failure))
        self._arrange()

    def _replaced(
        self, model: HostedModel, closes: list[Callable[[], None]], place: Place
    ) -> Served:
        """The loaded model, after those before it have been closed; runs in a thread."""
        close_all(*closes)
        closes.clear()  # they hold vocabularies of megabytes
        gc.collect()  # sessions refer to themselves

        def report(doing: str, share: float) -> None:
            self._progress = doing, share
            if self._is_ending:
                raise Cancelled("the server is shutting down")

        report("opening", 0.0)
        served = self._load(model, place == "beside" or bool(self._seats), report)
        if self._is_ending:
            served.model.close()
            raise Cancelled("the server is shutting down")
        return served

    def _taken_out(self, places: Sequence[Place]) -> list[Callable[[], None]]:
        """Functions that close the models at `places`, which are no longer there."""
        seats = [self._seats.pop(place) for place in places]
        for seat in seats:
            self._left = _added(self._left, seat.served.model.paging)
        return [seat.served.model.close for seat in seats]

    def _places(self, model: HostedModel) -> tuple[Place, ...]:
        """The places that a model needs, its own first."""
        if self.together:
            return (f"of {model.name}",)
        alone = self._seats.get("alone")
        if model.fits_beside and (alone is None or alone.served.leaves_room):
            return ("beside",)
        return ("alone", "beside")

    def _place_of(self, model: HostedModel) -> Place | None:
        return next((p for p, seat in self._seats.items() if seat.model is model), None)

    def _seat_of(self, model: HostedModel) -> _Seat | None:
        place = self._place_of(model)
        return None if place is None else self._seats[place]


def _added(total: PagingStats, more: PagingStats) -> PagingStats:
    return PagingStats(
        passes=total.passes + more.passes,
        bytes_read=total.bytes_read + more.bytes_read,
        stall_s=total.stall_s + more.stall_s,
        merge_s=total.merge_s + more.merge_s,
    )


def _told(error: BaseException) -> str:
    """An error in one line, without its traceback, which would keep the model in memory."""
    known = isinstance(error, EdgespecError | OSError)
    message = str(error) if known else f"unexpected {type(error).__name__}: {error}"
    return " ".join(message.split())
