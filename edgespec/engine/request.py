"""A request while the engine serves it: its sampler, its transcript and its measurements.

Knows no model. A `Generation` is the caller's handle of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgespec.engine.outcome import Tally
from edgespec.engine.transcript import Transcript, left_by_shift
from edgespec.errors import Cancelled
from edgespec.ports import Progress
from edgespec.ports.text_request import TextRequest
from edgespec.rules.acceptance_rules import AcceptanceRule
from edgespec.rules.filters import Logits
from edgespec.rules.sampling import Sampler
from edgespec.tree import ROOT, TokenTree
from edgespec.values import GenerationResult, PagingStats, TokenEvent


def nowhere(events: Sequence[TokenEvent]) -> None:
    """Receiver of a request that nobody reads."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class ActiveRequest:
    """An admitted request with its sampler, transcript and measurements."""

    terms: TextRequest
    """The request as submitted."""
    sampler: Sampler
    transcript: Transcript
    tally: Tally = field(default_factory=Tally)
    n_keep: int | None = None
    """Number of first tokens that remain of a full context, -1 for the prompt; None ends the text
    there."""
    held: tuple[int, ...] | None = None
    """Tokens that remained after the latest context shift; None before any."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set by any thread to cancel the request; never cleared."""
    deliver: Callable[[Sequence[TokenEvent]], None] = nowhere
    """Called by the engine's thread with the tokens of a pass, and with none once the text has
    ended; must not wait."""
    thread: int = 0
    """Identifier of the thread that asked for tokens last."""
    is_queued: bool = False
    """True once it has joined the line."""
    is_wanted: bool = False
    """True while somebody waits for its next token."""
    is_left: bool = False
    """True once nobody will read it."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set once the engine has let go of it, or never had it and never will."""
    failure: BaseException | None = None
    """Error that ended the text, Cancelled included; raised after the tokens before it."""
    paging: PagingStats | None = None
    """Reads of the target while it ran."""

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.terms.prompt_tokens

    @property
    def reading(self) -> tuple[int, ...]:
        """Tokens that the models read before generating: the prompt, or the rest of a context
        shift."""
        return self.prompt if self.held is None else self.held

    @property
    def progress(self) -> Progress | None:
        """Callback for the progress of reading the prompt; None after a context shift."""
        return self.terms.progress if self.held is None else None

    def shift_context(self, held: Sequence[int]) -> None:
        """Drop a part of `held`, the tokens of the full context."""
        assert self.n_keep is not None
        self.held = left_by_shift(held, len(self.prompt), self.n_keep)
        self.tally.dropped_tokens += len(held) - len(self.held)

    @property
    def has_grammar(self) -> bool:
        return self.terms.constraint is not None

    def run_ahead(self) -> None:
        """Write the text to its end from now on."""
        self.terms = replace(self.terms, runs_ahead=True)

    def forget_grammar(self) -> None:
        """Release the grammar's memory, when the text has ended."""
        self.terms = replace(self.terms, constraint=None)
        self.sampler.forget_constraint()

    def accept(
        self,
        rule: AcceptanceRule,
        tree: TokenTree,
        nodes: Sequence[int],
        logits: np.ndarray,
    ) -> tuple[list[int], list[TokenEvent]]:
        """Walk down from the root until the text ends or no verified guess is accepted.

        Returns the path, nodes of which each is the parent of the next, and the token picked after
        each of them: accepted guesses, and the target's own token at the end. `logits` are the
        target's after `nodes`, float32 [len(nodes), n_vocab]. The sampler and the transcript accept
        every token. An error ends the request; it is raised if no token was picked before it.
        """
        sampler, transcript = self.sampler, self.transcript
        after: dict[int, Logits] = dict(zip(nodes, logits, strict=True))
        path: list[int] = []
        events: list[TokenEvent] = []
        node: int | None = ROOT
        while node is not None and node in after and not transcript.is_finished:
            try:
                token = rule.pick(tree, node, after, sampler)
                sampler.accept(token, after[node])
            except Exception as error:
                if not path:
                    raise
                self.failure = error
                break
            if path:  # the token before this one was guessed
                events[-1] = replace(events[-1], origin="draft", source=tree.source[node])
            path.append(node)
            round_ = len(self.tally.outcomes)
            events.append(transcript.take(token, "target", round_, sampler.latest_logprobs))
            node = tree.child(node, token)
        return path, events

    def check_cancelled(self) -> None:
        """Raise Cancelled if the request was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled("the generation was cancelled")

    def result(self, load_s: float = 0.0) -> GenerationResult:
        """The text and measurements so far; an unfinished text counts as cancelled.

        `load_s` is the time of loading the models.
        """
        return GenerationResult(
            text=self.transcript.text,
            prompt_tokens=self.prompt,
            tokens=tuple(self.transcript.tokens),
            finish_reason=self.transcript.finish_reason or "cancelled",
            stopped_by=self.transcript.stopped_by,
            timings=replace(self.tally.timings(), load_s=load_s),
            speculation=self.tally.speculation(),
            paging=self.paging or PagingStats(),
            notes=tuple(self.tally.notes.values()),
            reused_tokens=self.tally.reused_tokens,
            saved_passes=self.tally.saved_passes,
            dropped_tokens=self.tally.dropped_tokens,
        )
