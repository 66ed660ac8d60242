"""One request for text: what belongs to it alone, and what came of it so far.

Knows no model; the engine works on it, a generation is its owner's handle.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from edgespec.engine.outcome import Tally
from edgespec.engine.sampling import Sampler
from edgespec.engine.transcript import Transcript
from edgespec.errors import Cancelled
from edgespec.ports import Progress
from edgespec.values import GenerationResult, PagingStats


class Keeper(Protocol):
    """Keeps what a prompt costs beyond the process; it may use the models when it is called."""

    def before_prompt(self, prompt: Sequence[int], tally: Tally) -> None:
        """The prompt is about to be read: models may be given what was kept of it."""

    def after_prompt(self, n_prefilled: int, tally: Tally) -> None:
        """It was read, `n_prefilled` tokens of it in passes of their own."""


@dataclass(eq=False, slots=True)
class Request:
    """Prompt, sampler, text and figures of one generation."""

    prompt: tuple[int, ...]
    sampler: Sampler
    transcript: Transcript
    progress: Progress | None = None
    keeper: Keeper | None = None
    tally: Tally = field(default_factory=Tally)
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set at any moment, from any thread, and never cleared."""

    def check_cancelled(self) -> None:
        """Raise Cancelled if it is."""
        if self.cancelled.is_set():
            raise Cancelled("the generation was cancelled")

    def result(self, paging: PagingStats | None = None, load_s: float = 0.0) -> GenerationResult:
        """What came of it; a text that nothing has ended yet counts as cancelled.

        `paging` is what this request cost, `load_s` what loading the models did.
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
