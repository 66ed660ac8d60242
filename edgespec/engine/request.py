"""One request for text while the engine serves it: its sampler, its text so far and its figures.

Knows no model; a generation is the caller's handle of it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from edgespec.engine.outcome import Tally
from edgespec.engine.sampling import Sampler
from edgespec.engine.transcript import Transcript
from edgespec.errors import Cancelled
from edgespec.ports.text_request import TextRequest
from edgespec.values import GenerationResult, PagingStats


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """A request that was admitted: its sampler, its text so far and its figures."""

    terms: TextRequest
    """The request as it was made."""
    sampler: Sampler
    transcript: Transcript
    tally: Tally = field(default_factory=Tally)
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set at any moment, from any thread, and never cleared."""

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.terms.prompt_tokens

    def check_cancelled(self) -> None:
        """Raise Cancelled if the request was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled("the generation was cancelled")

    def result(self, paging: PagingStats | None = None, load_s: float = 0.0) -> GenerationResult:
        """The text and figures so far; a text that nothing has ended yet counts as cancelled.

        `paging` is the cost of this request, `load_s` that of loading the models.
        """
        return GenerationResult(
            text=self.transcript.text,
            prompt_tokens=self.prompt,
            tokens=tuple(self.transcript.tokens),
            finish_reason=self.transcript.finish_reason or "cancelled",
            timings=replace(self.tally.timings(), load_s=load_s),
            speculation=self.tally.speculation(),
            paging=paging or PagingStats(),
            notes=tuple(self.tally.notes),
            reused_tokens=self.tally.reused_tokens,
            saved_passes=self.tally.saved_passes,
        )
