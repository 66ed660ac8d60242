"""A target with layers on RPC servers, whose loss is an error and not the end of the application.

Knows no protocol: `llama.rpc` makes its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from edgespec.concurrency.owning import Users
from edgespec.errors import TargetLost
from edgespec.pool import Pool
from edgespec.ports import LanguageModel, PassPart, Progress
from edgespec.values import PagingStats
from edgespec_runtimes.gguf.llama.rpc import ServerCalls


class RemoteModel(LanguageModel):
    """A loaded model whose calls raise TargetLost once a server is lost."""

    def __init__(self, load: Callable[[], LanguageModel], servers: Sequence[str]) -> None:
        """Load the model by `load`. Raises what it raises."""
        self._calls = ServerCalls(servers)
        try:
            self._model = self._calls.run(load)
        except BaseException:
            self._calls.end()
            raise
        self._users = Users("the model")
        self.vocabulary = self._model.vocabulary
        self.info = replace(
            self._model.info,
            gives_features=False,
            adjusts=False,
            block_tokens=0,
            needs_checkpoints=False,
        )
        self.last_report = self._model.last_report

    def committed_of(self, slot: int) -> int:
        return self._model.committed_of(slot)

    def evaluate(
        self, parts: Sequence[PassPart], progress: Progress | None = None
    ) -> list[np.ndarray]:
        with self._users:
            logits = self._calls.run(partial(self._model.evaluate, parts, progress))
            self.last_report = self._model.last_report
            return logits

    def commit(
        self, pool: Pool, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        with self._users:
            self._calls.run(partial(self._model.commit, pool, path, keep, slot))

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        with self._users:
            self._calls.run(partial(self._model.truncate, n_tokens, slot))

    def share(self, source: int, target: int, n_tokens: int) -> None:
        with self._users:
            self._calls.run(partial(self._model.share, source, target, n_tokens))

    def paging(self) -> PagingStats:
        return self._model.paging()

    def cancel(self) -> None:
        self._model.cancel()

    def close(self) -> None:
        """Cancel the running call, wait for it and free everything. Idempotent, from any thread."""
        self._users.close(self.cancel, self._release)

    def _release(self) -> None:
        with suppress(TargetLost):  # what llama.cpp holds of a lost server cannot be freed
            self._calls.run(self._model.close)
        self._calls.end()
