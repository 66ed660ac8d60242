"""The draft model's side of a round: it evaluates open nodes and hangs guesses below them.

It owns which nodes the draft has evaluated. It knows no target, no clock and no fallback rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from edgespec.engine.calibration import Calibration
from edgespec.engine.pacer import Candidate, Limits, Pacer, candidates
from edgespec.engine.sampling import Logits
from edgespec.ports import LanguageModel
from edgespec.tree import ROOT, TokenTree


class Drafter:
    """A draft model, what it has evaluated, and how far its confidences are to be trusted.

    `n_vocab` and `eog_tokens` are the target's: no other token is guessed, and nothing is guessed
    after the end of a text.
    """

    def __init__(
        self,
        model: LanguageModel,
        n_candidates: int,
        temperature: float,
        n_vocab: int,
        eog_tokens: frozenset[int],
    ) -> None:
        self.model = model
        self.calibration = Calibration()
        self._n_candidates = n_candidates
        self._temperature = temperature
        self._n_shared = min(n_vocab, model.info.n_vocab)
        self._eog_tokens = eog_tokens
        self._evaluated: dict[int, list[Candidate]] = {}
        """By key, the nodes that the draft has evaluated, and what it thinks follows them, with its
        own confidences."""
        self.n_guesses = 0
        """Nodes added to trees so far."""

    @property
    def deepest(self) -> int:
        """The greatest depth at which the draft's context lets a guess hang."""
        return self.model.info.n_ctx - self.model.n_committed

    def can_follow(self, committed: Sequence[int], root_token: int) -> bool:
        """Whether context and vocabulary let the draft evaluate `root_token` after `committed`.

        Models of one family may pad their vocabularies to different sizes.
        """
        unseen = [*committed[self.model.n_committed :], root_token]
        return len(committed) < self.model.info.n_ctx and max(unseen) < self.model.info.n_vocab

    def catch_up(self, committed: Sequence[int]) -> None:
        """Read the committed tokens that the draft has not seen."""
        self.rest()
        self.model.prefill(committed[self.model.n_committed :])

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """Nodes that may be evaluated: not done, no end of text, within the draft's branches."""
        n_nodes = len(tree)
        keys, parents = tree.key[:n_nodes].tolist(), tree.parent[:n_nodes].tolist()
        done = {node for node in range(n_nodes) if keys[node] in self._evaluated}
        extended = {parents[node] for node in done}
        is_full = len(done - extended) >= self.model.info.max_branches
        return [
            node
            for node in range(n_nodes)
            if node not in done
            and not (is_full and parents[node] in extended)
            and int(tree.token[node]) not in self._eog_tokens
        ]

    def step(
        self, tree: TokenTree, open_nodes: Sequence[int], pacer: Pacer, limits: Limits
    ) -> bool:
        """Evaluate what the pacer asks for and add its guesses. False if nothing was to do."""
        if len(tree) + 1 >= tree.capacity:
            return False
        nodes = self._fitting(tree, pacer.extend(tree, open_nodes, limits))
        if not nodes:
            return False
        for node, logits in zip(nodes, self.model.evaluate(tree, nodes), strict=True):
            self._grow(tree, node, logits, pacer)
        return True

    def follow(self, tree: TokenTree, path: Sequence[int], root: int, pacer: Pacer) -> TokenTree:
        """Commit `path` and return the tree below `root`, a child of the path's end.

        What stood teaches how far to trust the draft's confidences from now on. The end of a path
        is often a guess that the draft never evaluated: it then reads it together with the new
        root, in one step.
        """
        self._learn(tree, [*path, root])
        seen = [node for node in path if int(tree.key[node]) in self._evaluated]
        unseen = list(path[len(seen) :])
        keep = [] if unseen else self._within(tree, root)
        if seen:
            self.model.commit(tree, seen, keep)
        kept = {int(tree.key[node]) for node in keep}
        self._evaluated = {key: after for key, after in self._evaluated.items() if key in kept}
        if not unseen:
            return self._regrown(tree.reroot(root), pacer)

        key = int(tree.key[root])
        tree = tree.reroot(unseen[0])
        chain = tree.path(tree.find(key))
        if len(chain) > self.model.info.max_nodes:
            return tree.reroot(chain[-1])  # catch_up() will read them as committed tokens
        logits = self.model.evaluate(tree, chain)
        self.model.commit(tree, chain[:-1], keep=chain[-1:])
        tree = tree.reroot(chain[-1])
        self._grow(tree, ROOT, logits[-1], pacer)
        return tree

    def rest(self) -> None:
        """Drop everything provisional; the committed prefix stays and may fall behind."""
        if self._evaluated:
            self.rewind(self.model.n_committed)

    def rewind(self, n_tokens: int) -> None:
        """Drop everything provisional and all but the first `n_tokens` of the prefix."""
        self._evaluated.clear()
        self.model.truncate(min(n_tokens, self.model.n_committed))

    def _learn(self, tree: TokenTree, stood: Sequence[int]) -> None:
        """Compare what the draft offered after each node of a path with what was picked there."""
        for node, picked in pairwise(stood):
            guesses = self._evaluated.get(int(tree.key[node]))
            if guesses:
                token = int(tree.token[picked])
                self.calibration = self.calibration.observe(
                    (guess.confidence, guess.token == token) for guess in guesses
                )

    def _grow(self, tree: TokenTree, node: int, logits: Logits, pacer: Pacer) -> None:
        """Hang the pacer's choice of guesses below a node that has been evaluated."""
        logits = logits[: self._n_shared]
        guesses = candidates(logits, self._n_candidates, self._temperature)
        self._evaluated[int(tree.key[node])] = guesses
        self._hang(tree, node, guesses, pacer)

    def _regrown(self, tree: TokenTree, pacer: Pacer) -> TokenTree:
        """Hang what was too improbable below the old root and is worth a node below the new one."""
        for node in range(len(tree)):
            guesses = self._evaluated.get(int(tree.key[node]))
            if guesses is not None:
                self._hang(tree, node, guesses, pacer)
        return tree

    def _hang(self, tree: TokenTree, node: int, guesses: Sequence[Candidate], pacer: Pacer) -> None:
        trusted = [
            Candidate(guess.token, self.calibration.confidence(guess.confidence))
            for guess in guesses
        ]
        for guess in pacer.children(tree, node, trusted):
            # One place stays free for the target's own token.
            if len(tree) + 1 < tree.capacity and tree.child(node, guess.token) is None:
                tree.add(node, guess.token, guess.confidence)
                self.n_guesses += 1

    def _fitting(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        """The first of `nodes` that the draft's cache, batch and branches have room for."""
        info = self.model.info
        cells = info.n_ctx - self.model.n_committed - len(self._evaluated)
        fitting = list(nodes[: max(0, min(cells, info.max_nodes))])
        done = self._within(tree, ROOT)
        while fitting and tree.branch_count([*done, *fitting]) > info.max_branches:
            fitting.pop()
        return fitting

    def _within(self, tree: TokenTree, node: int) -> list[int]:
        """Evaluated nodes of the subtree of `node`."""
        return [below for below in tree.subtree(node) if int(tree.key[below]) in self._evaluated]
