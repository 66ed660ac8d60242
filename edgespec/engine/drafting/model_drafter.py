"""Drafter with a draft model, which evaluates nodes to guess the tokens after them.

Owns the set of evaluated nodes and keeps the model's KV consistent, whose context may be a window
that moves over a longer text. Knows no target, no clock and no other drafter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgespec.engine.drafting.drafter import Opinion
from edgespec.errors import ModelError
from edgespec.ports import LanguageModel, PassPart, token_ids_of
from edgespec.rules.filters import Logits
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.tree import ROOT, TokenTree

SINK_TOKENS = 4
"""Number of first tokens that are always kept."""
MIN_ROOM = 128
"""Free cells below which the window moves, as guesses need some."""
MIN_WINDOW = 16
"""Smallest context with a moving window; in a smaller one, guesses end when it is full."""


class ModelDrafter:
    """Implements `Drafter` with a draft model.

    `n_vocab` and `eog_tokens` are the target's: only its tokens are guessed, and none after an end
    of text. Texts of up to `max_tokens` may exceed the draft's context: when it is full, the model
    reads its latest half again after the first tokens, which costs one more token to read per token
    of text.
    """

    source = "draft"
    is_free = False
    temperature = 0.6
    """Prior temperature of the draft's calibration."""
    step_depth = 1
    """Number of consecutive nodes that a step adds."""
    max_late = 4
    """Most committed tokens that are left to the step at the root: a pass over few tokens takes
    little longer than one over the root, and a round without that step needs none."""

    def __init__(
        self,
        model: LanguageModel,
        n_candidates: int,
        n_vocab: int,
        eog_tokens: frozenset[int],
        max_tokens: int = 0,
        slot: int = 0,
    ) -> None:
        self.model = model
        self._slot = slot
        self._max_branches = model.info.slot_branches
        self._sampler = Sampler(SamplingParams())
        n_ctx = model.info.n_ctx
        self.moves = MIN_WINDOW <= n_ctx < max_tokens
        """True if texts may become longer than the model's context."""
        self._n_latest = n_ctx // 2 - SINK_TOKENS
        self._least_room = min(MIN_ROOM, n_ctx // 4)
        self._n_left_out = 0
        """Number of tokens between the first ones and the latest ones."""
        self._n_candidates = n_candidates
        self._rated = token_ids_of(model, n_vocab)
        """Tokens of the model's logits; None for the first of the vocabulary."""
        self._n_shared = (
            min(n_vocab, model.info.n_vocab) if self._rated is None else len(self._rated)
        )
        self._eog_tokens = eog_tokens
        self._opinions: dict[int, Opinion | None] = {}
        """Guesses by key of the evaluated node; None if its logits were not finite."""
        self._late: Sequence[int] = ()
        """Committed tokens that the step at the root reads."""
        self.ahead: np.ndarray | None = None
        """Logits of the next step, computed in advance together with those of other texts."""
        self._damage: str | None = None
        """Error of logits that were not finite; prevents guesses until the text is truncated to
        before them."""
        self._n_sound = 0
        """Tokens that the model had read before the damage."""

    @property
    def n_held(self) -> int:
        """Number of tokens that the model holds."""
        return self.model.committed_of(self._slot)

    @property
    def n_read(self) -> int:
        """Number of tokens of the text up to the last one that the model holds."""
        return self.n_held + self._n_left_out

    @property
    def n_leading(self) -> int:
        """Length of the text's prefix that the model holds without a gap."""
        return SINK_TOKENS if self._n_left_out else self.n_held

    @property
    def room(self) -> int:
        """Number of free cells in the model's context."""
        return self.model.info.n_ctx - self.n_held

    def n_unread(self, n_tokens: int) -> int:
        """Number of tokens that `catch_up` computes for a text of `n_tokens`."""
        if self._must_move(n_tokens):
            return self._n_latest
        return max(0, n_tokens - self.n_read)

    def begin_text(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """Nodes that are not evaluated and not an end of text, within the model's limits of context
        and branches."""
        n_nodes = len(tree)
        keys, parents = tree.key[:n_nodes].tolist(), tree.parent[:n_nodes].tolist()
        opinions = self._opinions
        done = {node for node in range(n_nodes) if keys[node] in opinions}
        extended = {parents[node] for node in done}
        is_full = len(done - extended) >= self._max_branches
        deepest = self.room
        found: list[int] = []
        reached = done | {-1}
        for node in range(n_nodes):
            parent = parents[node]
            if (
                node not in done
                and parent in reached
                and not (is_full and parent in extended)
                and tree.depth[node] < deepest
                and int(tree.token[node]) not in self._eog_tokens
            ):
                found.append(node)
                reached.add(node)
        return found

    def step(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        part, late = self.part(tree, nodes), self._late
        if not part.nodes:
            return []
        logits, self.ahead = self.ahead, None
        if logits is None:
            [logits] = self.model.evaluate([part])
        self._late = ()
        if part.tree is tree:
            self._take_opinions(tree, part.nodes, logits)
            return [*part.nodes]
        root = part.nodes[-1:]
        self._take_opinions(part.tree, root, logits[-1:], root_ahead=-len(late))
        self.model.commit(part.tree, part.nodes[:-1], root, self._slot)
        return [ROOT]

    def part(self, tree: TokenTree, nodes: Sequence[int]) -> PassPart:
        """A step over `nodes` as a part of a pass of the model; over the root and the tokens before
        it if these are not read yet."""
        if not self._late:
            return PassPart(self._slot, tree, self.fitting(tree, nodes))
        if self.model.info.prompts_share_passes:
            return PassPart(self._slot, tree, [ROOT], self._late)
        line = tree.below(self._late)
        return PassPart(self._slot, line, range(len(line)))

    def opinion(self, key: int) -> Opinion | None:
        return self._opinions.get(key)

    def observe_logits(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Ignore the logits: a draft model learns from picked tokens only."""

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        """Commit `path`, but for nodes at its end that the model has not evaluated."""
        seen = [node for node in path if int(tree.key[node]) in self._opinions]
        keep = self._within(tree, root) if len(seen) == len(path) else []
        if seen:
            self.model.commit(tree, seen, keep, self._slot)
        kept = {int(tree.key[node]) for node in keep}
        self._opinions = {key: said for key, said in self._opinions.items() if key in kept}

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        """Non-finite logits, a full context, or a token beyond the vocabulary, which models of one
        family may pad to different sizes."""
        info = self.model.info
        if self._damage is not None:
            return self._damage
        if len(committed) >= info.n_ctx and not self.moves:
            return f"its context holds {info.n_ctx}"
        unknown = max(*committed[self.n_read :], root_token, ROOT)
        if unknown >= info.n_vocab:
            return f"its vocabulary of {info.n_vocab} has no token {unknown}"
        return None

    def catch_up(self, committed: Sequence[int]) -> bool:
        """Read the rest of the text, or move the window to its end; False if nothing is read now.

        A few tokens are left to the step at the root.
        """
        must_move, self._late = self._must_move(len(committed)), ()
        if not must_move and self.n_read >= len(committed):
            return False
        self.rest()
        if not must_move:
            unread = committed[self.n_read :]
            most = min(self.max_late, self.model.info.max_nodes - 1, self.room - 1)
            if self.n_held and len(unread) <= most:
                self._late = unread
                return False
            self._append(unread)
            return True
        self._truncate(min(SINK_TOKENS, self.n_leading))
        begin = len(committed) - self._n_latest
        self._append([*committed[self.n_held : SINK_TOKENS], *committed[begin:]])
        self._n_left_out = begin - SINK_TOKENS
        return True

    def rest(self) -> None:
        if self._opinions:
            self.rewind(self.n_read)

    def rewind(self, n_tokens: int) -> None:
        self._opinions.clear()
        self._late, self.ahead = (), None
        self._truncate(min(n_tokens, self.n_read))
        if n_tokens < self._n_sound:
            self._damage = None

    def cancel(self) -> None:
        self.model.cancel()

    def _must_move(self, n_tokens: int) -> bool:
        """True if the window must move to have room for guesses after `n_tokens`."""
        return self.moves and self.room - max(0, n_tokens - self.n_read) < self._least_room

    def _append(self, tokens: Sequence[int]) -> None:
        """Read the text's next tokens."""
        self.model.evaluate([PassPart(self._slot, reads=tokens)])

    def _truncate(self, n_tokens: int) -> None:
        """Drop guesses and all but the first `n_tokens` of the text from the model.

        If less than half of a moved window would remain, keep only the first tokens, so that the
        window is read again.
        """
        n_held = n_tokens - self._n_left_out
        if self._n_left_out and n_held < SINK_TOKENS + self._n_latest // 2:
            n_held = min(n_tokens, SINK_TOKENS)
            self._n_left_out = 0
        self.model.truncate(min(n_held, self.n_held), self._slot)
        if self.n_held < SINK_TOKENS:
            self._n_left_out = 0

    def _take_opinions(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        logits: Iterable[np.ndarray],
        root_ahead: int = 0,
    ) -> None:
        """Store the guesses after `nodes`, by the model's logits there.

        `root_ahead` is the number of draws until the one after the root; below 0, that draw and
        some below it are made already.
        """
        for node, row in zip(nodes, logits, strict=True):
            key = int(tree.key[node])
            try:
                n_ahead = root_ahead + int(tree.depth[node])
                needs_branch = root_ahead == 0 and self._sampler.needs_branches
                branch = tree.branch_tokens(node) if needs_branch else ()
                self._opinions[key] = self._opinion(key, row[: self._n_shared], n_ahead, branch)
            except ModelError as error:
                self._opinions[key] = None
                self._damage, self._n_sound = str(error), self.n_read

    def _opinion(
        self, key: int, logits: Logits, n_ahead: int, ahead: Sequence[int]
    ) -> Opinion | None:
        """Guesses after the tokens `ahead` from the model's `logits` [columns] there; None if none
        is possible.

        Raises ModelError if the largest logit is not finite.
        """
        tokens, shares = self._sampler.foresee(
            logits, self._n_candidates, n_ahead, ahead, self._rated
        )
        if not tokens:
            return None
        return Opinion(
            self.source,
            tokens,
            shares,
            chance=min(1.0, sum(shares)),
            temperature=self.temperature,
            is_exhaustive=True,
        )

    def fitting(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        """The first of `nodes`, and of their unevaluated ancestors, that fit into the model's
        context, batch and branches."""
        info = self.model.info
        cells = self.room - len(self._opinions)
        wanted: set[int] = set()
        for node in nodes:
            above = node
            while above >= 0 and above not in wanted and int(tree.key[above]) not in self._opinions:
                wanted.add(above)
                above = int(tree.parent[above])
        fitting = sorted(wanted)[: max(0, min(cells, info.max_nodes))]
        done = self._within(tree, ROOT)
        while fitting and tree.branch_count([*done, *fitting]) > self._max_branches:
            fitting.pop()
        return fitting

    def _within(self, tree: TokenTree, node: int) -> list[int]:
        """Evaluated nodes of the subtree of `node`."""
        return [below for below in tree.subtree(node) if int(tree.key[below]) in self._opinions]
