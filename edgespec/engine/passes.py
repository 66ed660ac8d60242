"""Runs passes of the target over one text or several, long ones in a thread of their own.

Knows models through their port, and no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from edgespec.concurrency.owning import Closeable
from edgespec.concurrency.worker import Running, Worker
from edgespec.ports import LanguageModel
from edgespec.ports.texts import HoldsTexts, PassPart
from edgespec.tracing.spans import Trace, Track

SHORT_PASS_S = 0.002
"""Passes expected to be shorter run in the caller's thread if the target is resident: they do not
delay Ctrl-C, and waking another thread takes 0.1 to 0.3 ms. Longer ones compute where the prompt
was computed: a second thread that computes gets OpenMP threads of its own, more than there are
cores, and all of them then sleep at every barrier (decision 0070). Passes with callbacks never run
in the caller's thread, as an exception of a signal handler would be lost within a callback."""

Logits = list[np.ndarray]
"""Logits of each part of a pass, float32 [nodes, n_vocab]."""


class Passes(Closeable):
    """Evaluates passes of a target, in a worker thread if they are long. Borrows the model."""

    def __init__(self, target: LanguageModel, clock: Callable[[], float], trace: Trace) -> None:
        self.target = target
        self.calls_back = target.paging().segments > 0
        """True if a pass has callbacks, as for paging."""
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
        """Make one pass and return its logits; `beside` runs during the pass.

        `check` is called repeatedly and may raise.
        """
        is_short = 0 < self._usual_pass_s < SHORT_PASS_S
        n_rows = sum(part.n_rows for part in parts)
        with self.trace.span(Track.ENGINE, "verify").note(nodes=n_rows):
            if beside is None and is_short and not self.calls_back:
                logits = self._evaluate(parts)
            else:
                evaluate = partial(self._evaluate, parts)
                with self.worker.running(evaluate, self.target.cancel) as running:
                    if beside is not None:
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

    def _evaluate(self, parts: Sequence[PassPart]) -> Logits:
        if len(parts) == 1 and parts[0].text == 0 and not parts[0].reads:
            return [self.target.evaluate(parts[0].tree, parts[0].nodes)]
        assert isinstance(self.target, HoldsTexts)
        return self.target.evaluate_together(parts)

    def _expect_pass(self, pass_s: float) -> None:
        """Update the expected duration; one slow pass at most doubles it."""
        self._usual_pass_s = min(pass_s, 2 * self._usual_pass_s) if self._usual_pass_s else pass_s
