"""Several models under one budget: the one that is asked for is in memory, the others are not."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from edgespec.concurrency.owning import Closeable
from edgespec.engine.settings import EngineSettings
from edgespec.errors import SessionClosed, UsageError
from edgespec.memory import heap
from edgespec.ports import Progress
from edgespec.session import embedder, session
from edgespec.session.embedder import Embedder
from edgespec.session.session import Session
from edgespec.settings.config import LoadSettings

M = TypeVar("M", Session, Embedder)


class Models(Closeable):
    """Models by name, each of which has the budget for itself while it is in memory."""

    def __init__(
        self,
        settings: Mapping[str, LoadSettings | str | Path],
        engine_settings: EngineSettings | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Settings of `edgespec.load` by the models' names; nothing is loaded yet."""
        self.n_loads = 0
        """Number of models loaded so far."""
        self._settings = dict(settings)
        self._engine_settings = engine_settings
        self._progress = progress
        self._turn = threading.Lock()
        self._loaded: tuple[str, Session | Embedder] | None = None
        self._is_closed = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._settings)

    @property
    def loaded(self) -> str | None:
        """Name of the model in memory."""
        return self._loaded[0] if self._loaded else None

    def session(self, name: str) -> Session:
        """The model `name`, loaded if it is not in memory.

        The model before it is closed first, and its generations end with SessionClosed. Raises the
        errors of `edgespec.load`, and UsageError for an unknown name.
        """
        load = partial(session.load, engine_settings=self._engine_settings)
        return self._loaded_as(Session, name, load)

    def embedder(self, name: str) -> Embedder:
        """The embedding model `name`, as with `session`. Raises the errors of `load_embedder`."""
        return self._loaded_as(Embedder, name, embedder.load_embedder)

    def _loaded_as(self, kind: type[M], name: str, load: Callable[..., M]) -> M:
        with self._turn:
            if self._is_closed:
                raise SessionClosed("the models are closed")
            if self._loaded and self._loaded[0] == name and isinstance(self._loaded[1], kind):
                return self._loaded[1]
            if name not in self._settings:
                raise UsageError(f"there is no model {name!r}, only {', '.join(self.names)}")
            self._unload()
            loaded = load(self._settings[name], progress=self._progress)
            self._loaded, self.n_loads = (name, loaded), self.n_loads + 1
            return loaded

    def close(self) -> None:
        with self._turn:
            self._is_closed = True
            self._unload()

    def _unload(self) -> None:
        if self._loaded is not None:
            self._loaded[1].close()
            self._loaded = None
            gc.collect()  # sessions refer to themselves
            heap.trim_heap()
