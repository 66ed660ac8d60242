"""Runs passes of the target over one text or several, with drafting beside them.

Knows models through their port, and no rule. Passes compute in the calling thread, but for those
beside which it drafts: a second thread that computes gets OpenMP threads of its own, more than
there are cores, and all of them then sleep at every barrier (decision 0070).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from edgespec.concurrency.owning import Closeable
from edgespec.concurrency.worker import Running, Worker
from edgespec.ports import LanguageModel, PassPart
from edgespec.tracing.spans import Trace, Track

Logits = list[np.ndarray]
"""Logits of each part of a pass, float32 [nodes, n_vocab]."""


class Passes(Closeable):
    """Evaluates passes of a target. Borrows the model."""

    def __init__(self, target: LanguageModel, clock: Callable[[], float], trace: Trace) -> None:
        self.target = target
        self.clock = clock
        self.trace = trace
        self.worker = Worker()
        self._usual_pass_s = 0.0

    def evaluate(
        self,
        parts: Sequence[PassPart],
        beside: Callable[[Running[Logits]], None] | None,
        check: Callable[[], None],
    ) -> Logits:
        """Make one pass and return its logits; `beside` runs during the pass, which is then made in
        a worker thread while `check` is called repeatedly, which may raise."""
        n_rows = sum(part.n_rows for part in parts)
        with self.trace.span(Track.ENGINE, "verify").note(nodes=n_rows):
            if beside is None:
                logits = self.target.evaluate(parts)
            else:
                evaluate = partial(self.target.evaluate, parts)
                with self.worker.running(evaluate, self.target.cancel) as running:
                    beside(running)
                    logits = running.result(check)
        self._expect_pass(self.target.last_report.wall_s)
        return logits

    @property
    def usual_pass_s(self) -> float:
        """Expected seconds of a pass; 0 before the first."""
        return self._usual_pass_s

    def close(self) -> None:
        """Stop the worker thread. Idempotent."""
        self.worker.close()

    def _expect_pass(self, pass_s: float) -> None:
        """Update the expected duration; one slow pass at most doubles it."""
        self._usual_pass_s = min(pass_s, 2 * self._usual_pass_s) if self._usual_pass_s else pass_s
