"""One slot: a place for a text in the target and its drafters, and the text that is written there.

Keeps their KV caches consistent, and knows one text's part in a pass; `loop` makes the passes.
`choose_slot` finds the slot of a request, the one in which most of its prompt is already computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.model_drafter import ModelDrafter
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.prompt import read_prompt, reusable
from edgespec.engine.request import ActiveRequest
from edgespec.engine.round import Round
from edgespec.ports import LanguageModel
from edgespec.ports.prefixes import PrefixPlace
from edgespec.rules.acceptance_rules import AcceptanceRule
from edgespec.rules.tree_limits import Limits
from edgespec.tracing.spans import Trace, Track
from edgespec.tree import ROOT, TokenTree
from edgespec.values import PagingStats, TokenEvent


class Slot:
    """A place for one text in a target and its drafters."""

    def __init__(
        self,
        target: LanguageModel,
        number: int,
        grower: TreeGrower | None,
        limits: Limits,
        acceptance: AcceptanceRule,
        planner: RoundPlanner,
        clock: Callable[[], float],
        trace: Trace,
        prefixes: Callable[[int], PrefixPlace] | None = None,
    ) -> None:
        """`prefixes` says where the texts of a slot are stored."""
        self.target = target
        self.prefixes = prefixes(number) if prefixes is not None else None
        self.number = number
        self.grower = grower
        self.limits = limits
        """Limits of trees in any context."""
        self.acceptance = acceptance
        self.planner = planner
        """The planner of all slots."""
        self.clock = clock
        self.trace = trace
        self.committed: list[int] = []
        """Tokens of the target's committed prefix; each drafter has committed a prefix of it."""
        self.n_tiled = 0
        """Committed tokens computed in tiles of `prompt_tile`, as long prompts are."""
        self.client = ""
        """Client whose text is committed."""
        self.n_known: int | None = None
        """Committed tokens of the text that is written here which were computed before it; None
        before its prompt is read."""
        self.is_free = True
        """True if no text is written here."""
        self.request: ActiveRequest
        """The request whose text is written here; a free slot has none."""
        self.paging_before = PagingStats()
        """Reads of the target before the text."""
        self.begun = -math.inf
        """Time at which the latest text began."""
        self.events: list[TokenEvent] = []
        """Accepted tokens that are not yielded yet."""
        self.tree = TokenTree(0, 1)
        """The text's next tree; its root is the last token, whose KV is not computed yet."""
        self.reads_prompt = False
        """True if the next pass reads a part of the prompt."""
        self.round: Round | None = None
        """Part of the next pass, if it verifies a tree."""
        self._reading: Iterator[Literal[False]] | None = None
        """The prompt's passes of its own."""
        self.joined_at: float | None = None
        """Time at which the text joined the passes of all texts, with what is left of its prompt,
        then with its trees; None before."""

    @property
    def drafter(self) -> ModelDrafter | None:
        """The drafter with a draft model."""
        return self.grower.modelled if self.grower is not None else None

    @property
    def n_unread(self) -> int:
        """Tokens that the draft model must read before it can guess; 0 if it cannot guess. What
        other drafters read takes no time."""
        drafter = self.drafter
        if drafter is None:
            return 0
        n_unread = drafter.n_unread(len(self.committed))
        if n_unread and drafter.obstacle(self.committed, int(self.tree.token[ROOT])):
            return 0
        return n_unread

    @property
    def is_sure_of_next(self) -> bool:
        """True if a lookup in the text is sure of the token after the root."""
        root_token = int(self.tree.token[ROOT])
        return self.grower is not None and self.grower.is_sure_of_next(self.committed, root_token)

    @property
    def n_leading(self) -> int:
        """Length of the prefix that the draft model holds without a gap."""
        return self.drafter.n_leading if self.drafter is not None else 0

    @property
    def is_full(self) -> bool:
        """True if the target's context is full."""
        return len(self.committed) >= self.target.info.n_ctx

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Make the target's KV of `path` final."""
        with self.trace.span(Track.ENGINE, "commit"):
            self.target.commit(tree, path, slot=self.number)
        self.committed += (int(tree.token[node]) for node in path)

    def catch_up(self, grower: TreeGrower) -> None:
        """Let the drafters read the committed tokens that they have not read: a prompt, or rounds
        without guesses."""
        with self.trace.span(Track.ENGINE, "catch up") as span:
            if not grower.catch_up(self.committed):
                span.forget()

    def rewind(self, n_tokens: int) -> None:
        """Truncate the models to at most `n_tokens` of the committed text; drops provisional KV."""
        n_held = self.target.committed_of(self.number)
        self.target.truncate(min(n_tokens, n_held), self.number)
        del self.committed[min(n_tokens, self.target.committed_of(self.number)) :]
        self.n_tiled = min(self.n_tiled, len(self.committed))
        if self.grower is not None:
            self.grower.rewind(len(self.committed))
        if self.prefixes is not None:
            self.prefixes.rewind(len(self.committed))

    def share(self, other: Slot, n_tokens: int) -> None:
        """Hold the first tokens of another slot's text in place of this one's, without computing
        them."""
        while self.store_block():
            pass
        self.rewind(0)
        self.client = other.client
        self.target.share(other.number, self.number, n_tokens)
        n_tokens = self.target.committed_of(self.number)
        self.committed = other.committed[:n_tokens]
        self.n_tiled = min(other.n_tiled, n_tokens)
        drafter = self.drafter
        if drafter is not None and drafter.model.info.n_slots >= self.target.info.n_slots:
            drafter.model.share(other.number, self.number, min(other.n_leading, n_tokens))

    def store_block(self) -> bool:
        """Store the next block of the committed text that is not stored; False if there is none."""
        if self.prefixes is None:
            return False
        n_tokens = self.n_tiled if self.target.info.prompt_tile else len(self.committed)
        n_leading = min(self.n_leading, len(self.committed))
        return self.prefixes.keep(self.committed, n_tokens, n_leading)

    def cancel(self) -> None:
        """Make a running call of a model raise Cancelled soon; callable from any thread."""
        self.target.cancel()
        if self.grower is not None:
            self.grower.cancel()

    # The text that is written here

    @property
    def is_at_work(self) -> bool:
        """True if the text needs further passes."""
        return self.request.failure is None and not self.request.transcript.is_finished

    @property
    def is_growing(self) -> bool:
        """True if its prompt is read, so that passes verify its tree."""
        return self.joined_at is not None and self.n_left <= 1

    @property
    def n_left(self) -> int:
        """Number of prompt tokens yet to be read."""
        return len(self.request.reading) - len(self.committed)

    def begin_text(self, request: ActiveRequest) -> None:
        """Write the text of `request` from now on."""
        if self.grower is not None:
            self.grower.begin_text(request.sampler, request.terms.client)
        self.events.clear()
        self.paging_before, self.begun = self.target.paging(), self.clock()
        self.request, self.is_free = request, False

    def end_text(self) -> None:
        """Keep the models' tokens, and nothing of the text but what drafters remember."""
        if self.grower is not None and self.n_known is not None:
            self.grower.end_text(self.committed[self.n_known :])
        self.n_known = None
        self.round = self._reading = self.joined_at = None
        self.reads_prompt = False
        self.is_free = True
        del self.request

    def prepare(self, n_others: int) -> None:
        """Prepare for a pass with `n_others` texts: read the prompt, or leave a part of it to the
        pass, or have a round, which is yet to begin."""
        self.reads_prompt, self.round = False, None
        request = self.request
        with self.ending_on_error():
            if not self._has_read(n_others):
                return
            if self.is_growing and request.n_keep is not None and self.is_full:
                request.shift_context([*self.committed, int(self.tree.token[ROOT])])
                self._reading = self.joined_at = None
                if not self._has_read(n_others):
                    return
            if self.is_growing:
                self.round = Round(self, self.tree, self.clock())
            else:
                request.check_cancelled()
                self.reads_prompt = True

    def _has_read(self, n_others: int) -> bool:
        """Make the next passes of the prompt's own; True if none are left."""
        if self.joined_at is None:
            if self._reading is None:
                self.tree = TokenTree(self.request.reading[-1], self.limits.tree_capacity)
                self._reading = read_prompt(self, n_others)
            if next(self._reading, True):
                self.joined_at = self.clock()
        return self.joined_at is not None

    @contextmanager
    def ending_on_error(self) -> Iterator[None]:
        """Context manager in which an error ends this text only."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised to the text's consumer
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the text; the error is raised after the tokens accepted before it."""
        self.request.failure = self.request.failure or error
        self.reads_prompt, self.round = False, None

    def start_again(self) -> None:
        """Discard an interrupted pass and its guesses, unless the text was cancelled."""
        with self.ending_on_error():
            self.request.check_cancelled()
            self.rewind(len(self.committed))
            self.tree = self.tree.bare()


def choose_slot(slots: Sequence[Slot], request: ActiveRequest) -> Slot:
    """A free slot whose text the prompt continues, or else the one that was free longest, which
    then shares the longest prefix of the prompt that any slot has."""
    if len(slots) == 1:
        return slots[0]
    prompt, client = request.prompt, request.terms.client
    best = max(slots, key=lambda slot: reusable(slot, prompt, client))
    n_shared = reusable(best, prompt, client)
    oldest = min((slot for slot in slots if slot.is_free), key=lambda slot: slot.begun)
    if best is oldest or (best.is_free and n_shared == len(best.committed) > 0):
        return best
    if n_shared > reusable(oldest, prompt, client):
        oldest.share(best, n_shared)
    return oldest
