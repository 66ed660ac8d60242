"""One request for text while the engine serves it: its sampler, its text so far and its figures.

Knows no model; a generation is the caller's handle of it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from edgespec.engine.outcome import Tally
from edgespec.engine.sampling import Sampler
from edgespec.engine.shifting import ContextShift
from edgespec.engine.transcript import Transcript
from edgespec.errors import Cancelled
from edgespec.ports import Progress
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
    shift: ContextShift | None = None
    """Rule for the end of the context; None ends the text there."""
    held: tuple[int, ...] | None = None
    """Tokens that the latest shift of the context left."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set at any moment, from any thread, and never cleared."""

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.terms.prompt_tokens

    @property
    def reading(self) -> tuple[int, ...]:
        """Tokens that the models read before the text goes on: the prompt, or what a shift of the
        context left."""
        return self.prompt if self.held is None else self.held

    @property
    def progress(self) -> Progress | None:
        """Progress of reading the prompt; a shift comes in the middle of what is shown."""
        return self.terms.progress if self.held is None else None

    def shift_context(self, held: Sequence[int]) -> None:
        """The context holds no more than `held`: go on with a part of it."""
        assert self.shift is not None
        self.held = self.shift.left(held, len(self.prompt))
        self.tally.dropped_tokens += len(held) - len(self.held)

    def forget_grammar(self) -> None:
        """Free what the grammar takes: the text has ended."""
        self.terms = replace(self.terms, constraint=None)
        self.sampler.forget_constraint()

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
            dropped_tokens=self.tally.dropped_tokens,
        )
