"""The models of a server: which are in memory, and which requests wait for which.

All share one budget. If it holds all of them, each is loaded once and stays. Otherwise a model
that writes texts has it for itself, but for room that it may leave to one embedding model; the
model that is asked for is loaded once requests to those that have to leave for it have ended. One
event loop owns this; knows no HTTP and no memory.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from edgespec.completions.protocols.model_names import HostedModel, model_named, not_loaded
from edgespec.concurrency.owning import close_all
from edgespec.errors import Cancelled, EdgespecError
from edgespec.ports import Progress
from edgespec.session.asynchronous import in_thread
from edgespec.values import PagingStats

_ENDS = "the server is shutting down"
_LOOK_S = 0.02
"""Seconds between looks at whether a model that has to leave is still in use."""


class Served(Protocol):
    """Protocol of a loaded model."""

    leaves_room: bool
    """True if an embedding model may be in memory beside it."""

    @property
    def model(self) -> Any:
        """The session or embedder."""


@dataclass(slots=True, eq=False)
class _Seat:
    model: HostedModel
    served: Any
    is_beside: bool = False
    """True for a model in the room that another one leaves."""
    n_users: int = 0


@dataclass(slots=True, eq=False)
class _Wish:
    """Requests that wait for one model."""

    seat: asyncio.Future[_Seat]
    n: int = 0


class ModelHost:
    """Loads the models that are asked for, in turn."""

    def __init__(
        self,
        models: Sequence[HostedModel],
        load: Callable[[HostedModel, bool, Progress], Served],
        together: bool = False,
    ) -> None:
        """`load` is called in a thread with a model, true if it is to be beside another one, and a
        callback that raises Cancelled once the server ends. With `together`, all stay once they are
        loaded."""
        self.models = tuple(models)
        self.together = together
        self.n_loads = 0
        """Number of models loaded so far."""
        self._load = load
        self._seats: dict[HostedModel, _Seat] = {}
        self._line: dict[HostedModel, _Wish] = {}
        """Models that are waited for, in the order in which they were asked for."""
        self._loading: HostedModel | None = None
        self._progress = ("", 0.0)
        self._work: asyncio.Task[None] | None = None
        """Gives seats to those in line."""
        self._is_ending = False
        self._left = PagingStats()
        """Totals of the models that have left."""

    def seat(self, model: HostedModel, served: Served) -> None:
        """Take in a model that is loaded already."""
        self._seats[model] = _Seat(model, served)

    @property
    def loaded(self) -> list[Any]:
        """The loaded models."""
        return [seat.served for seat in list(self._seats.values())]

    @property
    def current(self) -> Any:
        """The loaded model that writes texts, otherwise any; None if there is none."""
        return self._first.served if self._seats else None

    @property
    def paging(self) -> PagingStats:
        """Passes, bytes and stalls of all models since the server began."""
        return _sum([self._left, *(served.model.paging for served in self.loaded)])

    def named(self, name: str | None, embeds: bool | None = None) -> HostedModel:
        """The model that a request names, see `model_named`. Raises Refusal."""
        return model_named(self.models, name, embeds)

    def served(self, model: HostedModel) -> Any:
        """The loaded model; None while it is not in memory."""
        seat = self._seats.get(model)
        return seat.served if seat else None

    def is_ready(self, model: HostedModel) -> bool:
        """True if a request to `model` need not wait: it is loaded, and has to leave for no other
        one."""
        seat = self._seats.get(model)
        return seat is not None and not any(seat in self._leaving(one) for one in self._line)

    def state(self, model: HostedModel) -> dict[str, Any]:
        """The state of a model, as llama.cpp's router tells it, with the progress of loading."""
        if model is self._loading:
            doing, share = self._progress
            return {"value": "loading", "doing": doing, "progress": round(share, 3)}
        if model in self._seats:
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
    async def using(self, model: HostedModel) -> AsyncIterator[Any]:
        """The loaded model, which stays in memory until the block ends. Raises Refusal if it cannot
        be loaded."""
        if model.is_unusable:
            raise not_loaded(model.name, str(model.error))
        if self.is_ready(model):
            seat = self._seats[model]
            seat.n_users += 1
        else:
            seat = await self._seated(model)
        try:
            yield seat.served
        finally:
            seat.n_users -= 1

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Context manager in which `current`, of which there is one, stays in memory."""
        seat = self._first
        seat.n_users += 1
        try:
            yield
        finally:
            seat.n_users -= 1

    def stop(self) -> None:
        """End what is being loaded and computed, from any thread; nobody waits any longer."""
        self._is_ending = True
        for served in self.loaded:
            served.model.cancel()

    def close(self) -> None:
        """Close the loaded models, once the event loop has ended."""
        self._is_ending = True
        close_all(*self._taken_out(list(self._seats.values())))

    @property
    def _first(self) -> _Seat:
        return min(self._seats.values(), key=lambda seat: seat.model.embeds)

    async def _seated(self, model: HostedModel) -> _Seat:
        """The seat of a model once it is loaded. Requests to one model wait together, so that all
        are answered before it leaves; those behind another one wait even if their model is loaded,
        so that nobody waits for ever."""
        new = _Wish(asyncio.get_running_loop().create_future())
        wish = self._line.setdefault(model, new)
        wish.n += 1
        if self._work is None:
            self._work = asyncio.ensure_future(self._serve_line())
        try:
            await asyncio.wait({wish.seat})
        except asyncio.CancelledError:
            if not wish.seat.done():
                wish.n -= 1
            elif wish.seat.exception() is None:  # cancelled at the same moment
                wish.seat.result().n_users -= 1
            raise
        return wish.seat.result()

    async def _serve_line(self) -> None:
        """Load the models in line, one after the other, and tell those who wait for each."""
        while self._line:
            model, wish = next(iter(self._line.items()))
            try:
                seat = await self._when_loaded(model, wish)
            except Exception as error:  # noqa: BLE001 - those who wait for the model are told
                wish.seat.set_exception(self._failure(model, error))
                wish.seat.exception()  # nobody may be waiting any longer
            else:
                if seat is not None:
                    seat.n_users += wish.n
                    wish.seat.set_result(seat)
            del self._line[model]
        self._work = None

    def _failure(self, model: HostedModel, error: Exception) -> Exception:
        if self._is_ending:
            return Cancelled(_ENDS)
        model.error = _told(error)
        return not_loaded(model.name, model.error)

    async def _when_loaded(self, model: HostedModel, wish: _Wish) -> _Seat | None:
        """The seat of a model, after others have left for it; None if nobody wants it any more."""
        while wish.n and not self._is_ending:
            leaving = self._leaving(model)
            if model in self._seats:
                return self._seats[model]
            if not any(seat.n_users for seat in leaving):
                return await self._switch(model, leaving)
            await asyncio.sleep(_LOOK_S)
        if self._is_ending:
            raise Cancelled(_ENDS)
        return None

    def _leaving(self, model: HostedModel) -> list[_Seat]:
        """The loaded models that have to leave for `model`."""
        others = [seat for seat in self._seats.values() if seat.model is not model]
        if self.together:
            return []
        if self._comes_beside(model):
            return [seat for seat in others if seat.is_beside]
        return others

    def _comes_beside(self, model: HostedModel) -> bool:
        alone = [seat for seat in self._seats.values() if not seat.is_beside]
        return model.fits_beside and all(seat.served.leaves_room for seat in alone)

    async def _switch(self, model: HostedModel, leaving: Sequence[_Seat]) -> _Seat:
        """Unload the models at `leaving` and load `model`."""
        is_beside = not self.together and self._comes_beside(model)
        self._loading, self._progress = model, ("unloading", 0.0)
        closes = self._taken_out(leaving)  # here, so that no request is seated there any more
        try:
            served = await in_thread(lambda: self._replaced(model, closes, is_beside), self.stop)
        finally:
            self._loading = None
        model.error = None
        self.n_loads += 1
        self._seats[model] = seat = _Seat(model, served, is_beside)
        return seat

    def _replaced(
        self, model: HostedModel, closes: list[Callable[[], None]], is_beside: bool
    ) -> Served:
        """The loaded model, after those before it have been closed; runs in a thread."""
        close_all(*closes)
        closes.clear()  # they hold vocabularies of megabytes
        gc.collect()  # sessions refer to themselves

        def report(doing: str, share: float) -> None:
            self._progress = doing, share
            if self._is_ending:
                raise Cancelled(_ENDS)

        report("opening", 0.0)
        served = self._load(model, is_beside or bool(self._seats), report)
        if self._is_ending:
            served.model.close()
            raise Cancelled(_ENDS)
        return served

    def _taken_out(self, seats: Sequence[_Seat]) -> list[Callable[[], None]]:
        """Functions that close models, which are no longer loaded."""
        for seat in seats:
            del self._seats[seat.model]
            self._left = _sum([self._left, seat.served.model.paging])
        return [seat.served.model.close for seat in seats]


def _sum(stats: Sequence[PagingStats]) -> PagingStats:
    return PagingStats(
        passes=sum(one.passes for one in stats),
        bytes_read=sum(one.bytes_read for one in stats),
        stall_s=sum(one.stall_s for one in stats),
    )


def _told(error: BaseException) -> str:
    """An error in one line, without its traceback, which would keep the model in memory."""
    known = isinstance(error, EdgespecError | OSError)
    message = str(error) if known else f"unexpected {type(error).__name__}: {error}"
    return " ".join(message.split())
