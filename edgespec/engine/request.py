"""One request for text: the value that the doors build, and its state while the engine serves it.

Knows no model; a generation is the caller's handle of it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from edgespec.engine.outcome import Tally
from edgespec.engine.sampling import Constraint, Sampler, SamplingParams
from edgespec.engine.transcript import Transcript
from edgespec.errors import Cancelled
from edgespec.ports import Progress
from edgespec.values import GenerationResult, PagingStats


class Keeper(Protocol):
    """Optional protocol of a request: keeps the KV of a prompt beyond the process.

    It may use the models when it is called.
    """

    def before_prompt(self, prompt: Sequence[int], tally: Tally) -> None:
        """Called before the prompt is read: may load kept KV into the models."""

    def after_prompt(self, n_prefilled: int, tally: Tally) -> None:
        """Called after the prompt was read, `n_prefilled` of its tokens in passes of their own."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A text to generate, as the caller specified it."""

    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    """Most tokens of the text; None: as many as fit into the context."""
    stop: Sequence[str] = ()
    """Strings that end the text and are cut off."""
    constraint: Constraint | None = None
    """Grammar of the text, at its beginning: it follows one text and serves no second request."""
    n_logprobs: int | None = None
    """Alternatives whose log probabilities come with each token's own; None: no log
    probabilities."""
    shown: Mapping[int, str] = field(default_factory=dict)
    """Text of control tokens, which otherwise add none."""
    progress: Progress | None = None
    """Called while the prompt is read."""
    keeper: Keeper | None = None


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
