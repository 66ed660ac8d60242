"""One text while the engine writes it: its slot, sampler, transcript and measurements.

Knows one text's part in a pass; `engine` makes the passes. A `Generation` is the caller's handle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from edgespec.engine.outcome import Tally
from edgespec.engine.slot import Slot, is_tiled
from edgespec.engine.sources.source import Source
from edgespec.engine.transcript import Transcript
from edgespec.errors import Cancelled
from edgespec.pool import Pool, line
from edgespec.ports import PassPart, Progress
from edgespec.ports.text_request import TextRequest
from edgespec.rules.acceptance_rules import Draws, Pick, replayed
from edgespec.rules.pacer import Limits
from edgespec.rules.sampling import Sampler
from edgespec.values import GenerationResult, PagingStats, PromptProgress, TokenEvent

STEP = 256
"""Tokens for which a text has KV cells ahead."""
N_LEFT = 8
"""Last tokens of a prompt that a model with recurrent state reads in one pass. The state before
them is kept, as a template may omit them in the next turn."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Text:
    """An admitted request with its sampler, transcript and measurements."""

    terms: TextRequest
    """The request as submitted."""
    sampler: Sampler
    transcript: Transcript
    tally: Tally = field(default_factory=Tally)
    held: tuple[int, ...] | None = None
    """All tokens when it was set back, those that it had written behind the prompt's; None
    before."""
    is_cancelled: bool = False
    """Set by any thread to end the text; never cleared."""
    deliver: Callable[[Sequence[TokenEvent | PromptProgress]], None] = lambda _: None
    """Called by the engine's thread with the tokens of a pass or the progress of the prompt, and
    with nothing once the text has ended; must not wait."""
    thread: int = 0
    """Identifier of the thread that asked for tokens last."""
    is_queued: bool = False
    """True once it has joined the line."""
    is_wanted: bool = False
    """True while somebody waits for its next token."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set once the engine has let go of it, or never had it and never will."""
    failure: BaseException | None = None
    """Error that ended the text, Cancelled included; raised after the tokens before it."""
    paging: PagingStats | None = None
    """Reads of the target while it ran."""

    # Within the engine's thread

    slot: Slot = field(init=False)
    paging_before: PagingStats = field(default_factory=PagingStats)
    has_begun: bool = False
    """True once its prompt is being read."""
    n_drafted: int = 0
    """Guesses that the round of the next pass has added to its tree."""
    limits: Limits = field(init=False)
    """Limits of its tree in the next pass."""
    sources: list[Source] = field(default_factory=list)
    """Sources that guess in the next pass."""
    beside: set[int] = field(default_factory=set)
    """Keys of the nodes that were guessed during the latest pass."""
    begun_s: float = 0.0
    """Time at which its part in the next pass began."""
    told: PromptProgress | None = None
    """Latest progress of reading the prompt."""
    reading_since_s: float = 0.0
    events: list[TokenEvent] = field(default_factory=list)
    """Accepted tokens that are not delivered yet."""

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.terms.prompt_tokens

    @property
    def reading(self) -> tuple[int, ...]:
        """Tokens that the models read before generating: the prompt, or `held`."""
        return self.prompt if self.held is None else self.held

    @property
    def last_token(self) -> int:
        """The text's last token, whose KV is not computed yet."""
        n_committed = len(self.slot.committed)
        if n_committed < len(self.reading):
            return self.reading[-1]
        return self.transcript.tokens[-1]

    @property
    def n_cells(self) -> int:
        """KV cells for the next passes: what it holds, will read, and may write soon."""
        n_held = len(self.reading)
        if self.has_begun:
            n_held = max(n_held, len(self.slot.committed))
        return n_held + min(STEP, max(0, self.transcript.room))

    @property
    def n_left(self) -> int:
        """Number of prompt tokens yet to be read."""
        return max(0, len(self.reading) - len(self.slot.committed))

    @property
    def is_reading(self) -> bool:
        """True if the next pass reads a part of its prompt."""
        return self.is_at_work and self.n_left > 1

    @property
    def is_growing(self) -> bool:
        """True if the next pass verifies its tree."""
        return self.is_at_work and self.n_left <= 1

    @property
    def is_at_work(self) -> bool:
        """True if the text needs further passes."""
        return self.failure is None and not self.transcript.is_finished

    @property
    def is_waiting(self) -> bool:
        """True if it is in line for a slot."""
        return self.is_queued and not hasattr(self, "slot") and not self.ended.is_set()

    @property
    def has_grammar(self) -> bool:
        return self.terms.constraint is not None

    def forget_grammar(self) -> None:
        """Release the grammar's memory, when the text has ended."""
        self.terms = replace(self.terms, constraint=None)
        self.sampler.forget_constraint()

    def check_cancelled(self) -> None:
        """Raise Cancelled if the text was cancelled."""
        if self.is_cancelled:
            raise Cancelled("the generation was cancelled")

    def fail(self, error: BaseException) -> None:
        """End the text; the error is raised after the tokens accepted before it."""
        self.failure = self.failure or error

    def prepare(self, pool: Pool) -> None:
        """Take part in the next pass, and reuse what the models hold of the prompt."""
        self.check_cancelled()
        slot = self.slot
        if not self.has_begun:
            self._reuse()
            pool.plant(slot.number, self.reading[-1])
            self.has_begun = True
        elif slot.number not in pool.root:
            pool.plant(slot.number, self.last_token)

    def _reuse(self) -> None:
        """Keep the prefix of the prompt that the slot holds, or load a longer one that is
        stored."""
        slot, prompt, client = self.slot, self.prompt, self.terms.client
        n_held = slot.n_reusable(prompt, client)
        if n_held < len(slot.committed):
            while slot.store_block():
                self.check_cancelled()
        slot.rewind(n_held)
        slot.client = client
        if trouble := slot.load_prefix(prompt, self.check_cancelled):
            self.tally.note(trouble)
        if self.held is None:
            self.tally.reused_tokens = len(slot.committed)
        self.tell(len(slot.committed))

    def set_back(self) -> None:
        """Give up the slot's cells; what was read and written is computed again, and alike."""
        slot = self.slot
        if self.has_begun and len(slot.committed) >= len(self.reading):
            self.held = (*slot.committed, self.last_token)
        slot.forget()
        self.has_begun = False

    def tell(self, n_read: float) -> None:
        """Deliver that `n_read` tokens of the prompt are read or were in the cache, if that is
        followed."""
        follows = self.terms.progress is not None or self.terms.yields_progress
        if not follows or self.held is not None:
            return
        before, now_s = self.told, time.perf_counter()
        if before is None:
            before, self.reading_since_s = PromptProgress(0, round(n_read), -1, 0), now_s
        n_read, time_ms = round(n_read), round(1000 * (now_s - self.reading_since_s))
        if n_read > before.processed:
            self.told = PromptProgress(len(self.prompt), before.cache, n_read, time_ms)
            self.deliver([self.told])

    def progress_of(self, n_tokens: int) -> Progress:
        """Callback for a part of the prompt."""
        n_before = len(self.slot.committed)
        return lambda _, share: self.tell(n_before + share * n_tokens)

    def charge(self, seconds: float, gave_token: bool = False) -> None:
        """Count seconds of reading the prompt, which perhaps gave the first token, or of computing
        again what was set back."""
        tally = self.tally
        if self.held is not None:
            tally.again_s += seconds
            return
        tally.prompt_s += seconds
        if gave_token and tally.first_token_s is None:
            tally.first_token_s = tally.prompt_s

    def next_reads(self, pool: Pool, most: int, has_others: bool) -> tuple[PassPart, bool]:
        """The next part of the prompt, of at most `most` rows if it shares the pass of other texts;
        and whether it needs a pass of its own, which is short if it `has_others` to wait for it.

        The last token is the root of the tree, if its logits come with it. What was written before
        the text was set back is computed as rows again.
        """
        slot, prompt = self.slot, self.prompt
        info, begin, n = slot.target.info, len(slot.committed), len(prompt)
        n_alone = n - (not info.prompts_give_logits)
        shares = info.prompts_share_passes and not is_tiled(info, prompt)
        by_row = self.held is not None and (shares or begin >= n_alone)
        if not info.tree_capable:
            n_alone = n - 1 - N_LEFT * info.prompts_share_passes
        elif shares:
            n_alone = 0
        elif by_row and not info.prompts_share_passes:  # as nodes, which share any pass
            again = self.reading[begin : min(begin + max(1, most), len(self.reading) - 1)]
            its_line = line(slot.number, again)
            return PassPart(slot.number, its_line, range(len(again)), by_row=True), False
        elif begin and n_alone < n <= begin + most and not is_tiled(info, prompt):
            return PassPart(slot.number, line(slot.number, prompt[begin:]), range(n - begin)), False
        is_alone = begin < n_alone and not by_row
        n_tokens = most
        if is_alone:
            n_tokens = self._portion(n_alone - begin) if has_others else n_alone - begin
        end = min(begin + n_tokens, len(self.reading) - by_row)
        is_end = end == len(self.reading)
        reads, nodes = self.reading[begin : end - is_end], [pool.root[slot.number]] * is_end
        return PassPart(slot.number, pool, nodes, reads, by_row), is_alone

    def _portion(self, n_tokens: int) -> int:
        """Tokens of the next of equal passes, none of which is smaller than a tile."""
        info = self.slot.target.info
        n_tiles = n_tokens // max(1, info.prompt_tile)
        n_passes = min(-(-n_tokens // info.prompt_batch), max(1, n_tiles))
        return n_tokens // n_passes

    def accept(
        self,
        pool: Pool,
        nodes: Sequence[int],
        logits: np.ndarray,
        pick: Pick = replayed,
        draws: Mapping[int, Draws] | None = None,
    ) -> list[int]:
        """Walk down from the root until the text ends or `pick` takes no verified guess.

        Returns the path, nodes of which each is the parent of the next; after each of them an event
        is added: accepted guesses, and the target's own token at the end. `logits` are the target's
        after `nodes`, float32 [n_nodes, n_vocab]. An error ends the text; it is raised if no token
        was picked before it.
        """
        sampler, transcript = self.sampler, self.transcript
        if not transcript.tokens:
            self.tell(len(self.prompt))
        after = dict(zip(nodes, logits, strict=True))
        path: list[int] = []
        node: int | None = pool.root[self.slot.number]
        while node is not None and node in after and not transcript.is_finished:
            try:
                token = pick(pool, node, after, sampler, draws or {})
                sampler.accept(token, after[node])
            except Exception as error:
                if not path:
                    raise
                self.failure = error
                break
            if path:  # the token before this one was guessed
                self.events[-1] = replace(self.events[-1], origin="draft", source=pool.source[node])
            path.append(node)
            n_rounds = len(self.tally.rounds)
            event = transcript.take(token, n_rounds, sampler.latest_logprobs)
            self.events.append(event)
            node = pool.child(node, token)
        return path

    def result(self, load_s: float = 0.0) -> GenerationResult:
        """The text and measurements so far; an unfinished text counts as cancelled.

        `load_s` is the time of loading the models.
        """
        n_known = self.tally.reused_tokens + self.tally.read_tokens
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
            unread_tokens=0 if self.transcript.tokens else max(0, len(self.prompt) - n_known),
        )


@contextmanager
def ending(texts: Sequence[Text]) -> Iterator[None]:
    """Context manager in which an error ends these texts only; the end of a call that none of them
    has cancelled is raised."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Cancelled) and not all(text.is_cancelled for text in texts):
            raise
        for text in texts:
            text.fail(error)
