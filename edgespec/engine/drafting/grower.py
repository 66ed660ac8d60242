"""Grows one tree with the guesses of several drafters.

It asks drafters, pools what they say about a node, and hangs what the pacer chooses. It knows no
model, no clock and no fallback rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from edgespec.engine.drafting.drafter import Belief, Drafter, Guess, Learner, Rehearses
from edgespec.engine.drafting.forced import SOURCE as FORCED
from edgespec.engine.drafting.pooling import Pool
from edgespec.engine.drafting.remembering import Learnt, renewed
from edgespec.engine.outcome import Rehearsed
from edgespec.engine.pacer import Limits, Pacer
from edgespec.engine.sampling import SamplingParams
from edgespec.tree import TokenTree


class Complaint(NamedTuple):
    """Why a drafter sits out."""

    source: str
    reason: str


class Beliefs:
    """Learnt state of the drafters of one text, or of several texts together."""

    def __init__(self) -> None:
        self.now: dict[str, Belief] = {}
        self.before: Learnt = {}
        """Learnt state of another run."""
        self.n_texts = 0


class TreeGrower:
    """Some drafters, the most trusted one first, and how much each of them counts."""

    def __init__(self, drafters: Sequence[Drafter], beliefs: Beliefs | None = None) -> None:
        """`beliefs` are those that drafters of the same kind share with other texts."""
        self._drafters = tuple(drafters)
        self._ready = self._drafters
        """Drafters that can guess the next token of the text."""
        self._free_sources = frozenset(
            {FORCED, *(drafter.source for drafter in self._drafters if drafter.is_free)}
        )
        self._pool = Pool()
        self._beliefs = beliefs or Beliefs()
        self._beliefs.n_texts += 1
        self._temperature: float | None = None
        """At which the target samples; None before the first text."""
        self.n_guesses = 0
        """Nodes added to trees so far."""

    @property
    def free_sources(self) -> frozenset[str]:
        """Sources whose nodes cost no model step: drafters without a model, and a grammar."""
        return self._free_sources

    @property
    def is_ready(self) -> bool:
        return bool(self._ready)

    def recall(self, learnt: Learnt) -> None:
        """Begin with what another run learnt."""
        self._beliefs.before = learnt

    def learnt(self) -> Learnt:
        """Learnt state of this run and those before it, for another run."""
        if self._beliefs.n_texts == 1:
            self._keep_beliefs()
        beliefs = {name: belief.numbers() for name, belief in self._beliefs.now.items()}
        return renewed(self._beliefs.before, beliefs)

    def sample_at(self, temperature: float) -> None:
        """The target samples at `temperature` from now on: what was learnt at others waits."""
        if self._beliefs.n_texts == 1:
            self._keep_beliefs()
        self._temperature = temperature
        before = self._beliefs.before
        for name, learner in self._learners():
            belief = self._beliefs.now.get(name)
            if belief is None:
                belief = learner.fresh_belief(temperature)
                if name in before:
                    belief = belief.recalled(before[name])
            learner.belief = belief

    def begin_text(self, params: SamplingParams) -> None:
        """The next text is sampled so."""
        self.sample_at(params.temperature)

    def prepare(self, committed: Sequence[int], root_token: int) -> list[Complaint]:
        """Find out who can guess what follows `root_token` after `committed`; the others rest."""
        complaints = []
        ready = []
        for drafter in self._drafters:
            reason = drafter.obstacle(committed, root_token)
            if reason is None:
                ready.append(drafter)
            else:
                drafter.rest()
                complaints.append(Complaint(drafter.source, reason))
        self._ready = tuple(ready)
        return complaints

    def is_behind(self, committed: Sequence[int]) -> bool:
        """True if a drafter has tokens to read before it can guess."""
        return any(drafter.is_behind(committed) for drafter in self._ready)

    def catch_up(self, committed: Sequence[int]) -> None:
        """Let the drafters read what was committed without them."""
        for drafter in self._ready:
            if drafter.is_behind(committed):
                drafter.catch_up(committed)

    def rehearse(self, text: Sequence[int]) -> list[Rehearsed]:
        """Guesses of the drafter with a model for `text`, the end of the committed tokens."""
        for drafter in self._ready:
            if isinstance(drafter, Rehearses):
                return list(drafter.rehearse(text))
        return []

    def begin(self, tree: TokenTree, pacer: Pacer, limits: Limits) -> None:
        """Hang what costs nothing."""
        for drafter in self._ready:
            if drafter.is_free:
                while self._ask(drafter, tree, drafter.open_nodes(tree), pacer, limits):
                    pass

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """Nodes about which a drafter whose steps cost something may still be asked."""
        asked = [drafter.open_nodes(tree) for drafter in self._ready if not drafter.is_free]
        return asked[0] if len(asked) == 1 else sorted({node for open_ in asked for node in open_})

    def step(
        self, tree: TokenTree, open_nodes: Sequence[int], pacer: Pacer, limits: Limits
    ) -> bool:
        """One step of the drafter that has the likeliest open node. False if nothing was to do."""
        for drafter, its_nodes in self._turns(tree, open_nodes):
            if self._ask(drafter, tree, its_nodes, pacer, limits):
                self.begin(tree, pacer, limits)
                return True
        return False

    def witness(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Tell the drafters what the target said after `nodes`: `logits` [len(nodes), n_vocab]."""
        for drafter in self._ready:
            drafter.witness(tree, nodes, logits)

    def follow(self, tree: TokenTree, path: Sequence[int], root: int, pacer: Pacer) -> TokenTree:
        """The tree below `root`, a child of the end of the `path` that the text went down.

        What stood teaches how far each drafter is to be trusted. What was too improbable below the
        old root, and is worth a node below the new one, is hung now.
        """
        is_shared = self._beliefs.n_texts > 1 and self._temperature is not None
        if is_shared:  # other texts have taught since
            self.sample_at(self._temperature or 0.0)
        for node, picked in pairwise([*path, root]):
            self._pool.observe(self._opinions(int(tree.key[node])), int(tree.token[picked]))
        for drafter in self._ready:
            drafter.follow(tree, path, root)
        if is_shared:
            self._keep_beliefs()
        tree = tree.reroot(root)
        for node in range(len(tree)):
            self._hang(tree, node, pacer)
        return tree

    def rest(self) -> None:
        """Drop everything provisional; the committed text stays and may fall behind."""
        for drafter in self._drafters:
            drafter.rest()

    def rewind(self, n_tokens: int) -> None:
        """Drop everything provisional, and all but the first `n_tokens` of the text."""
        for drafter in self._drafters:
            drafter.rewind(n_tokens)

    def cancel(self) -> None:
        """From any thread: make a running call raise `Cancelled` soon."""
        for drafter in self._drafters:
            drafter.cancel()

    def _learners(self) -> Iterator[tuple[str, Learner]]:
        """Learners with the name under which their state is kept."""
        if self._temperature is None:
            return
        learners: list[Learner] = [*self._drafters, self._pool]
        for learner in learners:
            yield f"{learner.source}@{self._temperature:g}", learner

    def _keep_beliefs(self) -> None:
        now = {name: learner.belief for name, learner in self._learners()}
        self._beliefs.now = renewed(self._beliefs.now, now)

    def _turns(
        self, tree: TokenTree, open_nodes: Sequence[int]
    ) -> list[tuple[Drafter, Sequence[int]]]:
        """Drafters and the nodes at which they may go on, the best place first."""
        costly = [drafter for drafter in self._ready if not drafter.is_free]
        if len(costly) == 1:
            return [(costly[0], open_nodes)]
        turns = [(drafter, drafter.open_nodes(tree)) for drafter in costly]
        turns = [(drafter, nodes) for drafter, nodes in turns if nodes]
        return sorted(turns, key=lambda turn: -float(tree.cumulative[turn[1]].max()))

    def _ask(
        self,
        drafter: Drafter,
        tree: TokenTree,
        open_nodes: Sequence[int],
        pacer: Pacer,
        limits: Limits,
    ) -> bool:
        """Let a drafter guess what follows the nodes that the pacer chooses. False for none."""
        if not open_nodes or len(tree) + 1 >= tree.capacity:
            return False
        asked = drafter.step(tree, pacer.extend(tree, open_nodes, limits))
        for node in asked:
            self._hang(tree, node, pacer)
        return bool(asked)

    def _hang(self, tree: TokenTree, node: int, pacer: Pacer) -> None:
        """Hang the pacer's choice of what is guessed below a node; what hangs there is revised."""
        opinions = self._opinions(int(tree.key[node]))
        if not opinions:
            return
        pooled = self._pool.pooled(opinions)
        for guess in pooled:
            child = tree.child(node, guess.token)
            if child is not None and guess.confidence != tree.confidence[child]:
                tree.revise(child, guess.confidence)
        for guess in pacer.children(tree, node, pooled):
            # One place stays free for the target's own token.
            if len(tree) + 1 < tree.capacity and tree.child(node, guess.token) is None:
                tree.add(node, *guess)
                self.n_guesses += 1

    def _opinions(self, key: int) -> list[Sequence[Guess]]:
        """Guesses of each drafter that was asked about a node."""
        said = (drafter.guesses(key) for drafter in self._ready)
        return [guesses for guesses in said if guesses]
