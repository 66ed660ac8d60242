"""Guesses of a draft model, which evaluates nodes to guess the tokens after them.

Keeps the model's KV consistent, whose context may be a window that moves over a longer text. Knows
no target, no clock and no other source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgespec.engine.sources.source import Opinion, Source
from edgespec.errors import ModelError
from edgespec.pool import Pool, line
from edgespec.ports import LanguageModel, PassPart

if TYPE_CHECKING:
    from edgespec.engine.text import Text

MIN_ROOM = 128
"""Free cells below which the window moves, as guesses need some."""
MIN_WINDOW = 16
"""Smallest context with a moving window; in a smaller one, guesses end when it is full."""
MAX_LATE = 4
"""Most committed tokens that are left to the step at the root: a pass over few tokens takes little
longer than one over the root, and a round without that step needs none."""


@dataclass
class DraftText:
    """The part of one slot's text that the draft holds."""

    n_left_out: int = 0
    """Number of tokens before those that it holds."""
    n_taken: int = 0
    """Number of leading tokens whose keys and values are the target's."""
    late: Sequence[int] = ()
    """Committed tokens that the step at the root reads."""
    damage: str | None = None
    """Error of logits that were not finite, after which the text has no more guesses."""


class ModelSource(Source):
    """Guesses of a draft model.

    `n_vocab` and `eog_tokens` are the target's: only its tokens are guessed, and none after an end
    of text. Texts of up to `max_tokens` may exceed the draft's context: when it is full, the model
    reads its latest half again, which costs one more token to read per token of text.
    """

    name, is_free, temperature = "draft", False, 0.6

    def __init__(
        self,
        model: LanguageModel,
        n_candidates: int,
        n_vocab: int,
        eog_tokens: frozenset[int],
        max_tokens: int = 0,
    ) -> None:
        super().__init__(eog_tokens)
        self.model = model
        self.n_slots, self._slot_branches = model.info.n_slots, model.info.slot_branches
        n_ctx = model.info.n_ctx
        self.moves = MIN_WINDOW <= n_ctx < max_tokens
        """True if texts may become longer than the model's context."""
        self._n_latest = n_ctx // 2
        self._n_candidates = n_candidates
        ids = model.token_ids
        self._rated = None if ids is None else ids[: np.searchsorted(ids, n_vocab)]
        """Tokens of the model's logits; None for the first of the vocabulary."""
        self._n_shared = (
            min(n_vocab, model.info.n_vocab) if self._rated is None else len(self._rated)
        )
        self._readings = [DraftText() for _ in range(self.n_slots)]

    def begin(self, text: Text) -> None:
        super().begin(text)
        self._readings[text.slot.number].damage = None

    def n_held(self, slot: int) -> int:
        """Number of tokens that the model holds."""
        return self.model.committed_of(slot)

    def n_read(self, slot: int) -> int:
        """Number of tokens of the text up to the last one that the model holds."""
        return self.n_held(slot) + self._readings[slot].n_left_out

    def n_leading(self, slot: int) -> int:
        """Length of the text's prefix that the model holds without a gap."""
        is_whole = slot < self.n_slots and not self._readings[slot].n_left_out
        return self.n_held(slot) if is_whole else 0

    def room(self, slot: int) -> int:
        """Number of free cells in the model's context."""
        return self.model.info.n_ctx - self.n_held(slot)

    def n_unread(self, text: Text) -> int:
        if self.obstacle(text) is not None:
            return 0
        slot, n_tokens = text.slot.number, len(text.slot.committed)
        if self._must_move(slot, n_tokens):
            return self._n_latest
        return 0 if self._takes_over(slot) else max(0, n_tokens - self.n_read(slot))

    def open(self, pool: Pool, text: Text) -> list[int]:
        """Nodes that are not evaluated and not an end of text, within the model's limits of context
        and branches."""
        slot, said = text.slot.number, self.said(text)
        nodes = pool.alive(slot)
        keys, parents = pool.key[nodes].tolist(), pool.parent[nodes].tolist()
        done = {node for node, key in zip(nodes.tolist(), keys, strict=True) if key in said}
        extended = {int(pool.parent[node]) for node in done}
        is_full = len(done - extended) >= self._slot_branches
        deepest, found, reached = self.room(slot), list[int](), done | {-1}
        for node, parent in zip(nodes.tolist(), parents, strict=True):
            if (
                node not in done
                and parent in reached
                and not (is_full and parent in extended)
                and pool.depth[node] < deepest
                and int(pool.token[node]) not in self._eog_tokens
                and pool.token[node] < self.model.info.n_vocab
            ):
                found.append(node)
                reached.add(node)
        return found

    def guess(self, pool: Pool, nodes: Sequence[int], texts: Mapping[int, Text]) -> list[int]:
        """Evaluate `nodes` as far as they fit; the root of a text together with tokens before it
        that are not read yet."""
        parts, room = [], self.model.info.max_nodes
        for number in dict.fromkeys(pool.text[list(nodes)].tolist()):
            text, late = texts[number], self._readings[number].late
            if late:
                part = _late_part(pool, text, late)
            else:
                its_nodes = [node for node in nodes if pool.text[node] == number]
                part = PassPart(number, pool, self._fitting(pool, its_nodes, text, room))
            if part.nodes and len(part.nodes) <= room:
                room -= len(part.nodes)
                parts.append(part)
        if not parts:
            return []
        asked: list[int] = []
        for part, logits in zip(parts, self.model.evaluate(parts), strict=True):
            its_nodes = [*part.nodes] if part.pool is pool else [pool.root[part.slot]]
            self._take(pool, its_nodes, logits[-len(its_nodes) :], texts[part.slot])
            if part.pool is not pool:
                self.model.commit(part.pool, part.nodes[:-1], part.nodes[-1:], part.slot)
                self._readings[part.slot].late = ()
            asked += its_nodes
        return asked

    def follow(self, pool: Pool, text: Text, path: Sequence[int], root: int) -> None:
        """Commit `path`, but for nodes at its end that the model has not evaluated."""
        said = self.said(text)
        seen = [node for node in path if int(pool.key[node]) in said]
        keep = self._within(pool, root, text) if len(seen) == len(path) else []
        if seen:
            self.model.commit(pool, seen, keep, text.slot.number)
        kept = {int(pool.key[node]) for node in keep}
        self._said[text.slot.number] = {key: one for key, one in said.items() if key in kept}

    def obstacle(self, text: Text) -> str | None:
        """Non-finite logits, a full context, or a token beyond the vocabulary, which models of one
        family may pad to different sizes."""
        info, slot, committed = self.model.info, text.slot.number, text.slot.committed
        if (damage := self._readings[slot].damage) is not None:
            return damage
        if len(committed) >= info.n_ctx and not self.moves:
            return f"its context holds {info.n_ctx}"
        unknown = max(*committed[self.n_read(slot) :], text.last_token, 0)
        if unknown >= info.n_vocab:
            return f"its vocabulary of {info.n_vocab} has no token {unknown}"
        return None

    def read(self, text: Text) -> None:
        """Take the target's keys and values (SubSpec, arXiv 2509.18344), read the rest of the text,
        or move the window to its end. A few tokens are left to the step at the root."""
        slot, committed = text.slot.number, text.slot.committed
        reading = self._readings[slot]
        must_move, reading.late = self._must_move(slot, len(committed)), ()
        if self._takes_over(slot) and not (must_move or self.said(text)):
            self._truncate(slot, reading.n_taken)
            self.model.take_prefix(len(committed), slot)
            reading.n_taken = self.n_held(slot)
        if not must_move and self.n_read(slot) >= len(committed):
            return
        self.rest(text)
        if not must_move:
            unread = committed[self.n_read(slot) :]
            most = min(MAX_LATE, self.model.info.max_nodes - 1, self.room(slot) - 1)
            if self.n_held(slot) and len(unread) <= most:
                reading.late = unread
            else:
                self.model.evaluate([PassPart(slot, reads=unread)])
            return
        self._truncate(slot, 0)
        begin = len(committed) - self._n_latest
        reading.n_left_out = begin  # also of what a cancelled call has read
        self.model.evaluate([PassPart(slot, reads=committed[begin:])])

    def rest(self, text: Text) -> None:
        if self.said(text):
            self.rewind(text.slot.number, self.n_read(text.slot.number))

    def rewind(self, slot: int, n_tokens: int) -> None:
        if slot >= self.n_slots:
            return
        self._said[slot], self._readings[slot].late = {}, ()
        self._truncate(slot, min(n_tokens, self.n_read(slot)))

    def cancel(self) -> None:
        self.model.cancel()

    def _takes_over(self, slot: int) -> bool:
        """True if the model takes the target's keys and values of this slot's text."""
        return self.model.info.takes_prefix and not self._readings[slot].n_left_out

    def _must_move(self, slot: int, n_tokens: int) -> bool:
        """True if the window must move to have room for guesses after `n_tokens`."""
        least_room = min(MIN_ROOM, self.model.info.n_ctx // 4)
        return self.moves and self.room(slot) - max(0, n_tokens - self.n_read(slot)) < least_room

    def _truncate(self, slot: int, n_tokens: int) -> None:
        """Drop guesses and all but the first `n_tokens` of the text from the model.

        If less than half of a moved window would remain, nothing does, and it is read again.
        """
        reading = self._readings[slot]
        n_held = n_tokens - reading.n_left_out
        if reading.n_left_out and n_held < self._n_latest // 2:
            n_held = 0
        self.model.truncate(min(n_held, self.n_held(slot)), slot)
        reading.n_taken = min(reading.n_taken, self.n_held(slot))
        if not self.n_held(slot):
            reading.n_left_out = 0

    def _take(
        self,
        pool: Pool,
        nodes: Sequence[int],
        logits: Iterable[np.ndarray],
        text: Text,
    ) -> None:
        """Keep the guesses after `nodes`, by the model's logits there."""
        said, sampler = self.said(text), text.sampler
        for node, row in zip(nodes, logits, strict=True):
            n_ahead, branch = int(pool.depth[node]), self.branch(pool, node, text)
            tokens, shares = list[int](), list[float]()
            try:
                tokens, shares = sampler.foresee(
                    row[: self._n_shared], self._n_candidates, n_ahead, branch, self._rated
                )
            except ModelError as error:
                self._readings[text.slot.number].damage = str(error)
            opinion = Opinion(
                self.name,
                tokens,
                shares,
                chance=min(1.0, sum(shares)),
                temperature=self.temperature,
                is_exhaustive=True,
            )
            said[int(pool.key[node])] = opinion if tokens else None

    def _fitting(self, pool: Pool, nodes: Sequence[int], text: Text, room: int) -> list[int]:
        """The first of `nodes` that fit into the model's context, branches and a pass of `room`
        nodes."""
        cells = self.room(text.slot.number) - len(self.said(text))
        fitting = [*nodes][: max(0, min(cells, room))]
        done = self._within(pool, pool.root[text.slot.number], text)
        while fitting and len(pool.leaves([*done, *fitting])) > self._slot_branches:
            fitting.pop()
        return fitting

    def _within(self, pool: Pool, node: int, text: Text) -> list[int]:
        """Evaluated nodes of the subtree of `node`."""
        said = self.said(text)
        return [below for below in pool.subtree(node) if int(pool.key[below]) in said]


def _late_part(pool: Pool, text: Text, late: Sequence[int]) -> PassPart:
    """The root and the tokens before it as a line of its own, whose end has the root's key."""
    root, number = pool.root[text.slot.number], text.slot.number
    its_line = line(number, [*late, text.last_token])
    its_line.key[: len(late)] = -1 - np.arange(len(late))
    its_line.key[len(late)] = pool.key[root]
    return PassPart(number, its_line, range(1 + len(late)))
