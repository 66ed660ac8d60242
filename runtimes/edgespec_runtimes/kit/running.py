"""A loaded model's calls: measured, one at a time, cancelled and closed from any thread.

Knows no rows, caches or libraries: what a pass computes is its runtime's.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from edgespec.concurrency.owning import Users
from edgespec.errors import ContextOverflow
from edgespec.paging.store import Reads, call_report, reads_of
from edgespec.ports import LanguageModel, PassPart, Progress, StateOrigin, Vocabulary
from edgespec.registry import prompt_parts
from edgespec.values import PagingStats, PassReport
from edgespec_runtimes.kit.segmented import SegmentedWeights


class Stoppable(Protocol):
    """A flag of a library that ends its running computation."""

    is_set: bool


class RunningModel(LanguageModel):
    """Base of loaded models; implements the part of the ports that no library decides."""

    _weights: SegmentedWeights[Any] | None

    def __init__(
        self,
        vocabulary: Vocabulary,
        origin: StateOrigin,
        stop: Stoppable,
        users: Users,
    ) -> None:
        self.vocabulary = vocabulary
        self.state_origin = origin
        self.last_report = PassReport()
        self._stop = stop
        self._users = users
        self._reported = Reads()
        """Totals at the end of the latest call."""
        self._paging: PagingStats | None = None
        """Final totals, set when the model is closed."""
        self._n_passes = self._n_rows = 0
        self._is_running = False
        self._state = threading.Lock()

    def evaluate(
        self, parts: Sequence[PassPart], progress: Progress | None = None
    ) -> list[np.ndarray]:
        """Logits after the nodes of each part, float32 [nodes, n_vocab].

        Raises UsageError for more nodes or branches than `info` allows.
        """
        part = parts[0]
        is_prompt = not part.nodes or (part.reads and self.info.prompts_give_logits)
        if len(parts) > 1 or part.by_row or not is_prompt:
            return self._evaluate(parts)
        if part.nodes:
            return [self._read_to_root(part, progress)]
        self._read(part.reads, part.slot, progress)
        return [np.empty((0, self.info.n_vocab), np.float32)]

    @abstractmethod
    def _read(self, tokens: Sequence[int], slot: int = 0, progress: Progress | None = None) -> None:
        """Append `tokens` to the committed prefix."""

    def _read_to_root(self, part: PassPart, progress: Progress | None) -> np.ndarray:
        """Append the tokens of a prompt and evaluate the root behind them; its logits, float32
        [1, n_vocab]. Called if `info.prompts_give_logits`."""
        raise NotImplementedError

    @abstractmethod
    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        """Logits of parts that have nodes, in one pass over the weights."""

    def divide(self, plan: Any) -> threading.Event:
        assert self._weights is not None, "all weights are resident"
        return self._weights.divide(plan)

    def settle(self) -> None:
        if self._weights is not None:
            self._weights.settle()

    def paging(self) -> PagingStats:
        if self._paging is not None:
            return self._paging
        return self._weights.stats if self._weights else PagingStats()

    def cancel(self) -> None:
        with self._state:
            if self._is_running:
                self._stop.is_set = True
                if self._weights:
                    self._weights.cancel()

    def close(self) -> None:
        """Cancel the running call, wait for it and free everything. Idempotent, from any thread."""
        self._users.close(self.cancel, self._release)

    def _release(self) -> None:
        self._paging = self.paging()

    def _prompt_batches(
        self, tokens: Sequence[int], n_batch: int, progress: Progress | None, tile: int = 0
    ) -> Iterator[tuple[int, list[int], Callable[[float], None]]]:
        """Batches of equal size of a prompt, none smaller than `tile`, which may make them overlap:
        where each begins in `tokens`, its own tokens, and a callback for the share of it that was
        read."""
        n_read = 0
        for part in prompt_parts(len(tokens), n_batch, tile):

            def report(share: float, begin: int = n_read, end: int = part.stop) -> None:
                if progress:
                    progress("reading the prompt", (begin + share * (end - begin)) / len(tokens))

            yield part.start, [int(token) for token in tokens[part.start : part.stop]], report
            report(1.0)
            n_read = part.stop

    def _check_room(self, n_tokens: int) -> None:
        """Raise ContextOverflow for a text of more tokens than the context."""
        if n_tokens > self.info.n_ctx:
            raise ContextOverflow(self.info.n_ctx, n_tokens)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Context manager for a cancellable call, which sets `last_report`."""
        stores = self._weights.stores if self._weights else ()
        begun_s, before = time.perf_counter(), reads_of(stores) if stores else Reads()
        self._n_passes = self._n_rows = 0
        with self._users:
            with self._state:
                self._stop.is_set = False
                if self._weights:
                    self._weights.resume()
                self._is_running = True
            try:
                yield
            finally:
                with self._state:
                    self._is_running = False
                    self._stop.is_set = False
        wall_s = time.perf_counter() - begun_s
        if not stores:
            self.last_report = PassReport(wall_s, passes=self._n_passes, n_tokens=self._n_rows)
            return
        after = reads_of(stores)
        call, since_report, self._reported = after.since(before), after.since(self._reported), after
        self.last_report = call_report(wall_s, call, since_report, self._n_passes, self._n_rows)
