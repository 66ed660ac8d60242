"""The models of a server: which are in memory, and which requests wait for which.

All share one budget. Those that stay are loaded once, in room of their own. The others take turns
in the rest: the one that is asked for is loaded once requests to the one before have ended. One
event loop owns this; knows no HTTP and no memory.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from edgespec.completions.protocols.model_names import HostedModel, not_loaded
from edgespec.concurrency.owning import close_all
from edgespec.errors import Cancelled, EdgespecError, marked
from edgespec.ports import Progress
from edgespec.server.queueing import Turns
from edgespec.session.asynchronous import in_thread
from edgespec.settings.base import in_flags

_LOOK_S = 0.02
"""Seconds between looks at whether it is the turn of a model that is waited for."""


@dataclass(slots=True)
class LoadedModel:
    """A model as it was loaded for a server."""

    model: Any
    """A `Session`, or an `Embedder`."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Defaults for requests."""
    turns: Turns = field(default_factory=Turns)
    completions: Any = None
    """The `Completions` of a model that writes texts; None for one that embeds."""


@dataclass(slots=True, eq=False)
class ModelHost:
    """Loads the models that are asked for, in turn."""

    models: Sequence[HostedModel]
    load: Callable[[HostedModel, Progress], Any]
    """Called in a thread with a model, and a callback that raises Cancelled once the server ends;
    gives a LoadedModel."""
    n_loads: int = 0
    """Number of models loaded so far."""
    _line: Counter[HostedModel] = field(default_factory=Counter)
    """Numbers of requests that wait for models, in the order in which these were asked for."""
    _work: asyncio.Task[None] | None = None
    """The latest change of models."""
    _loading: tuple[HostedModel | None, str, float] = None, "", 0.0
    """The model that is being loaded, what is done and the share of it that is done."""
    _is_ending: bool = False

    @property
    def loaded(self) -> list[HostedModel]:
        """The models in memory, those that write texts first."""
        loaded = [model for model in self.models if model.served is not None]
        return sorted(loaded, key=lambda model: model.embeds)

    def is_ready(self, model: HostedModel) -> bool:
        """True if a request to `model` need not wait: it is loaded, and has to leave for no other
        one."""
        waits = any(one is not model and not one.stays for one in self._line)
        return model.served is not None and (model.stays or not waits)

    def state(self, model: HostedModel) -> dict[str, Any]:
        """The state of a model, as llama.cpp's router tells it, with the progress of loading."""
        loading, doing, share = self._loading
        if model is loading:
            return {"value": "loading", "doing": doing, "progress": round(share, 3)}
        if model.served is not None:
            return {"value": "loaded"}
        failed = {"failed": True, "error": model.error} if model.error else {}
        return {"value": "unloaded", **failed}

    def told_progress(self, model: HostedModel) -> str:
        """Words about the work until `model` answers, for people."""
        loading, doing, share = self._loading
        if loading is None:
            return f"{model.name} waits for the requests to the model before it"
        return f"{loading.name}: {doing} {share:.0%}"

    @asynccontextmanager
    async def using(self, model: HostedModel) -> AsyncIterator[Any]:
        """The loaded model, which stays in memory until the block ends. Raises Refusal if it cannot
        be loaded."""
        if model.is_unusable:
            raise not_loaded(model.name, str(model.error))
        if not self.is_ready(model):
            await self._turn(model)
        with self.staying(model):
            yield model.served

    @contextmanager
    def staying(self, model: HostedModel) -> Iterator[None]:
        """Context manager in which a loaded model stays in memory."""
        model.n_users += 1
        try:
            yield
        finally:
            model.n_users -= 1

    def stop(self) -> None:
        """End what is being loaded and computed, from any thread; nobody waits any longer."""
        self._is_ending = True
        for model in self.loaded:
            if (served := model.served) is not None:
                served.model.cancel()

    def close(self) -> None:
        """Close the loaded models, once the event loop has ended."""
        self._is_ending = True
        close_all(*_taken_out(self.loaded))

    async def _turn(self, model: HostedModel) -> None:
        """Wait until a model is in memory and first in line. Requests to one model wait together,
        so that all are answered before it leaves; those behind another one wait even if their model
        is loaded, so that nobody waits for ever. A model is loaded to the end, whoever leaves."""
        if model not in self._line:
            model.error = None
        self._line[model] += 1
        try:
            while True:
                is_first = next(iter(self._line)) is model
                if is_first and model.served is not None:
                    return
                if self._is_ending:
                    raise Cancelled("the server is shutting down")
                if model.error is not None:
                    raise not_loaded(model.name, model.error)
                if self._work is not None and not self._work.done():
                    await asyncio.wait({self._work})
                elif is_first and not any(other.n_users for other in self._leaving(model)):
                    self._work = asyncio.ensure_future(self._switch(model))
                else:
                    await asyncio.sleep(_LOOK_S)
        finally:
            self._line[model] -= 1
            self._line += Counter()  # without those that nobody waits for

    def _leaving(self, model: HostedModel) -> list[HostedModel]:
        """The loaded models that have to leave for `model`."""
        return [one for one in self.loaded if not (model.stays or one.stays or one is model)]

    async def _switch(self, model: HostedModel) -> None:
        """Unload the models that have to leave and load `model`; it has its error if it fails."""
        # here, so that no request is seated there any more
        closes = _taken_out(self._leaving(model))

        def report(doing: str, share: float) -> None:
            self._loading = model, doing, share
            if self._is_ending:
                raise Cancelled("the server is shutting down")

        def replaced() -> Any:
            close_all(*closes)
            closes.clear()  # they hold vocabularies of megabytes
            gc.collect()  # sessions refer to themselves
            report("opening", 0.0)
            served = self.load(model, report)
            if self._is_ending:
                served.model.close()
            report("ready", 1.0)
            return served

        self._loading = model, "unloading", 0.0
        try:
            served = await in_thread(replaced, self.stop)
        except Exception as error:  # noqa: BLE001 - those who wait for the model are told
            # its traceback would keep the model in memory
            known = isinstance(error, EdgespecError | OSError)
            told = "" if known else f"unexpected {type(error).__name__}: "
            model.error = " ".join(f"{told}{in_flags(marked(error))}".split())
        else:
            self.n_loads += 1
            model.served = served
        finally:
            self._loading = None, "", 0.0


def _taken_out(models: Sequence[HostedModel]) -> list[Callable[[], None]]:
    """Functions that close models, which are no longer loaded."""
    closes = [model.served.model.close for model in models]
    for model in models:
        model.served = None
    return closes
