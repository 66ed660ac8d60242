"""The draft model as a drafter: it evaluates nodes and says what follows them.

It owns which nodes the model has evaluated, and the model's KV as a transaction. It knows no
target, no clock and nothing of who else guesses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.drafting.window import Window
from edgespec.engine.sampling import Logits, top_tokens
from edgespec.errors import ModelError
from edgespec.ports import LanguageModel
from edgespec.ports.texts import HoldsTexts, PassPart, TextOf
from edgespec.tree import ROOT, TokenTree


class Damage(NamedTuple):
    """Logits of the draft that were not finite."""

    n_committed: int
    """Tokens that the model had read before the evaluation that gave them."""
    reason: str


class ModelDrafter:
    """Implements `Drafter` with a draft model.

    `n_vocab` and `eog_tokens` are the target's: no other token is guessed, and nothing is guessed
    after the end of a text. `temperature` is the first guess of the draft's own. Texts of up to
    `max_tokens` may be longer than the draft's context.
    """

    source = "draft"
    is_free = False
    step_depth = 1
    """Nodes in a row that a step adds."""

    def __init__(
        self,
        model: LanguageModel,
        n_candidates: int,
        temperature: float,
        n_vocab: int,
        eog_tokens: frozenset[int],
        max_tokens: int = 0,
    ) -> None:
        self._temperature = temperature
        self._model = model
        self.window = Window(model, max_tokens)
        self._n_candidates = n_candidates
        self._n_shared = min(n_vocab, model.info.n_vocab)
        self._eog_tokens = eog_tokens
        self._opinions: dict[int, Opinion | None] = {}
        """Guesses after each evaluated node, by the node's key; None after logits that were not
        finite."""
        self._ahead: np.ndarray | None = None
        """Logits of the nodes of the next step, which was computed together with other texts'."""
        self._damage: Damage | None = None
        """Keeps the model from guessing until the text is rewound to before it."""

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """Not evaluated, no end of text, within the model's context and branches."""
        n_nodes = len(tree)
        keys, parents = tree.key[:n_nodes].tolist(), tree.parent[:n_nodes].tolist()
        info, opinions = self._model.info, self._opinions
        done = {node for node in range(n_nodes) if keys[node] in opinions}
        extended = {parents[node] for node in done}
        is_full = len(done - extended) >= info.max_branches
        deepest = self.window.room
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
        fitting = self.fitting(tree, nodes)
        if fitting:
            self._take_opinions(tree, fitting)
        return fitting

    def opinion(self, key: int) -> Opinion | None:
        return self._opinions.get(key)

    def observe_logits(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """A draft model learns from what was picked alone."""

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        """Commit `path`. Its end is often a guess that the model never evaluated: the model then
        reads it together with the new root, in one step."""
        seen = [node for node in path if int(tree.key[node]) in self._opinions]
        unseen = path[len(seen) :]
        keep = [] if unseen else self._within(tree, root)
        if seen:
            self._model.commit(tree, seen, keep)
        kept = {int(tree.key[node]) for node in keep}
        self._opinions = {key: said for key, said in self._opinions.items() if key in kept}
        # A longer path is left to catch_up(), which reads it as committed tokens.
        if unseen and len(unseen) < min(self._model.info.max_nodes, self.window.room):
            self._read(tree.branch([*unseen, root]))

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        """Damaged logits, context and vocabulary: models of one family may pad theirs to different
        sizes."""
        info = self._model.info
        if self._damage is not None:
            return self._damage.reason
        if len(committed) >= info.n_ctx and not self.window.moves:
            return f"its context holds {info.n_ctx}"
        unknown = max(*committed[self.window.n_read :], root_token, ROOT)
        if unknown >= info.n_vocab:
            return f"its vocabulary of {info.n_vocab} has no token {unknown}"
        return None

    def is_behind(self, committed: Sequence[int]) -> bool:
        n_tokens = len(committed)
        return self.window.n_read < n_tokens or self.window.must_move(n_tokens)

    def catch_up(self, committed: Sequence[int]) -> None:
        self.rest()
        self.window.read(committed)

    def rehearse(self, committed: Sequence[int], n_tokens: int) -> list[tuple[Opinion, int]]:
        self.rest()
        info, n_read = self._model.info, self.window.n_read
        n_tokens = min(n_tokens, info.max_nodes, self.window.room)
        text = committed[-n_tokens:]
        if n_tokens < 2 or max(text) >= info.n_vocab:
            return []
        tree = TokenTree(text[0], n_tokens)
        for node, token in enumerate(text[1:]):
            tree.add(node, token, confidence=1.0)
        nodes = range(n_tokens)
        self._take_opinions(tree, nodes)
        said = [self._opinions[int(key)] for key in tree.key[: n_tokens - 1]]
        if n_read + n_tokens == len(committed) and self._damage is None:
            self._model.commit(tree, nodes)
            self._opinions.clear()
        else:
            self.rest()
        return [
            (opinion, token)
            for opinion, token in zip(said, text[1:n_tokens], strict=True)
            if opinion is not None
        ]

    def rest(self) -> None:
        if self._opinions:
            self.rewind(self.window.n_read)

    def rewind(self, n_tokens: int) -> None:
        self._opinions.clear()
        self._ahead = None
        self.window.rewind(min(n_tokens, self.window.n_read))
        if self._damage is not None and n_tokens < self._damage.n_committed:
            self._damage = None

    def cancel(self) -> None:
        self._model.cancel()

    def _read(self, branch: TokenTree) -> None:
        """Evaluate a branch and commit it, but for its end, which stays provisional."""
        nodes = range(len(branch))
        self._take_opinions(branch, nodes)
        self._model.commit(branch, nodes[:-1], keep=nodes[-1:])
        end = int(branch.key[nodes[-1]])
        self._opinions = {end: self._opinions[end]}

    def _take_opinions(self, tree: TokenTree, nodes: Sequence[int]) -> None:
        """Evaluate `nodes` and keep what the model thinks follows them."""
        ahead, self._ahead = self._ahead, None
        logits = self._model.evaluate(tree, nodes) if ahead is None else ahead
        for node, row in zip(nodes, logits, strict=True):
            key = int(tree.key[node])
            try:
                self._opinions[key] = self._opinion(key, row[: self._n_shared])
            except ModelError as error:
                self._opinions[key] = None
                self._damage = Damage(self.window.n_read, str(error))

    def _opinion(self, key: int, logits: Logits) -> Opinion:
        """Guesses after the node of that key, by the model's `logits` [n_vocab] there.

        Raises ModelError if no logit is finite."""
        best = logits.max()
        if not math.isfinite(best):
            raise ModelError(f"the draft's best logit is {best}: its weights are damaged")
        tokens = top_tokens(logits, self._n_candidates)
        weights = np.exp(logits - best)
        probabilities = weights[tokens] / weights.sum()
        return Opinion(
            self.source,
            tokens.tolist(),
            np.maximum(probabilities, np.finfo(np.float32).tiny).tolist(),
            chance=min(1.0, float(probabilities.sum())),
            temperature=self._temperature,
            is_exhaustive=True,
        )

    def fitting(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        """The first of `nodes`, and of what others hung above them, that the model's cache, batch
        and branches have room for."""
        info = self._model.info
        cells = self.window.room - len(self._opinions)
        wanted: set[int] = set()
        for node in nodes:
            above = node
            while above >= 0 and above not in wanted and int(tree.key[above]) not in self._opinions:
                wanted.add(above)
                above = int(tree.parent[above])
        fitting = sorted(wanted)[: max(0, min(cells, info.max_nodes))]
        done = self._within(tree, ROOT)
        while fitting and tree.branch_count([*done, *fitting]) > info.max_branches:
            fitting.pop()
        return fitting

    def _within(self, tree: TokenTree, node: int) -> list[int]:
        """Evaluated nodes of the subtree of `node`."""
        return [below for below in tree.subtree(node) if int(tree.key[below]) in self._opinions]


def step_ahead(asked: Sequence[tuple[ModelDrafter, TokenTree, Sequence[int]]]) -> None:
    """Evaluate what the next steps of several texts' drafters will, in one step of their model.

    Those for which a step has no room take one of their own.
    """
    parts: list[PassPart] = []
    drafters: list[ModelDrafter] = []
    whole: HoldsTexts | None = None
    for drafter, tree, nodes in asked:
        model = drafter._model
        if nodes and isinstance(model, TextOf):
            n_nodes = len(nodes) + sum(len(part.nodes) for part in parts)
            if n_nodes <= model.info.max_nodes:
                whole = model.model
                parts.append(PassPart(model.text, tree, nodes))
                drafters.append(drafter)
    if whole is not None and len(parts) > 1:
        for drafter, logits in zip(drafters, whole.evaluate_together(parts), strict=True):
            drafter._ahead = logits
