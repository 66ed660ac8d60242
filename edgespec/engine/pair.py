"""The target, its drafters, and the text that all of them have committed.

Keeps their KV caches a transaction, and a pass out of the thread that receives Ctrl-C. It knows
models through the port, and no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from edgespec.concurrency.owning import Closeable
from edgespec.concurrency.worker import Running, Worker
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.request import ActiveRequest
from edgespec.ports import LanguageModel, Progress
from edgespec.tracing.spans import Trace, Track
from edgespec.tree import TokenTree

SHORT_PASS_S = 0.01
"""A resident target's pass that is shorter, to go by those before, runs in the caller's thread: it
keeps nobody's Ctrl-C waiting, and to wake another thread takes a tenth of a millisecond, and far
longer on a busy machine. A paged one calls back, and an exception of a signal handler that breaks
into a callback is lost there."""


class Pair(Closeable):
    """A target at work with its drafters. Models are borrowed: closing ends the thread alone."""

    def __init__(
        self,
        target: LanguageModel,
        grower: TreeGrower | None,
        clock: Callable[[], float],
        trace: Trace,
    ) -> None:
        self.target = target
        self.grower = grower
        self.is_paged = target.paging().segments > 0
        self.committed: list[int] = []
        """Tokens of the target's committed prefix; that of each drafter is a prefix of it."""
        self.n_tiled = 0
        """Committed tokens that were computed in tiles: the beginning of a long prompt."""
        self.running: ActiveRequest | None = None
        """The request that the models work for."""
        self.clock = clock
        self.trace = trace
        self._usual_pass_s = 0.0
        self._worker = Worker()

    def check_cancelled(self) -> None:
        """Raise Cancelled if the running request was cancelled."""
        if self.running is not None:
            self.running.check_cancelled()

    def prefill(self, tokens: Sequence[int], progress: Progress | None) -> None:
        """Commit `tokens` to the target, in its own batches."""
        read = partial(self.target.prefill, tokens, progress)
        self._worker.run(read, self.target.cancel, self.check_cancelled)
        self.committed += tokens
        if 0 < self.target.info.prompt_tile <= len(self.committed):
            self.n_tiled = len(self.committed)

    def evaluate(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        beside: Callable[[Running[np.ndarray]], None] | None = None,
    ) -> np.ndarray:
        """Logits [len(nodes), n_vocab] of one pass of the target, beside which `beside` works."""
        is_short = 0 < self._usual_pass_s < SHORT_PASS_S
        with self.trace.span(Track.ENGINE, "verify").note(nodes=len(nodes)):
            if beside is None and is_short and not self.is_paged:
                logits = self.target.evaluate(tree, nodes)
            else:
                evaluate = partial(self.target.evaluate, tree, nodes)
                with self._worker.running(evaluate, self.target.cancel) as running:
                    if beside is not None:
                        beside(running)
                    logits = running.result(self.check_cancelled)
        self._expect_pass(self.target.last_report.wall_s)
        return logits

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Make the target's KV of `path` final."""
        with self.trace.span(Track.ENGINE, "commit"):
            self.target.commit(tree, path)
        self.committed += (int(tree.token[node]) for node in path)

    def catch_up(self, grower: TreeGrower) -> None:
        """Let the drafters read tokens committed without them: a prompt, rounds without guesses."""
        if grower.is_behind(self.committed):
            with self.trace.span(Track.ENGINE, "catch up"):
                catch_up = partial(grower.catch_up, self.committed)
                self._worker.run(catch_up, grower.cancel, self.check_cancelled)

    def rewind(self, n_tokens: int) -> None:
        """Leave the models with `n_tokens` of the committed text, or fewer, and nothing else."""
        self.target.truncate(min(n_tokens, self.target.n_committed))
        del self.committed[min(n_tokens, self.target.n_committed) :]
        self.n_tiled = min(self.n_tiled, len(self.committed))
        if self.grower is not None:
            self.grower.rewind(len(self.committed))

    def cancel(self) -> None:
        """From any thread: make a running call of a model raise Cancelled soon."""
        self.target.cancel()
        if self.grower is not None:
            self.grower.cancel()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._worker.close()

    def _expect_pass(self, pass_s: float) -> None:
        """Update the usual duration; one slow pass at most doubles it."""
        self._usual_pass_s = min(pass_s, 2 * self._usual_pass_s) if self._usual_pass_s else pass_s
