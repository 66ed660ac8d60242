"""Grows one tree from the guesses of several drafters.

Requests guesses, mixes them, and adds those that the pacer chooses. Knows no model, no clock and no
stop rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from edgespec.engine.drafting.drafter import Drafter, Opinion, RemembersTexts
from edgespec.engine.drafting.lookup import LookupDrafter
from edgespec.engine.drafting.mixer import Mixer
from edgespec.engine.drafting.model_drafter import ModelDrafter
from edgespec.engine.outcome import SURE
from edgespec.ports import PassPart
from edgespec.rules.pacer import Pacer
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.rules.tree_limits import Limits
from edgespec.tree import ROOT, TokenTree

FORCED = "grammar"
"""Source of the tokens that a grammar forces."""
FORCED_CONFIDENCE = 0.99
"""A grammar forces bytes, which the target may still split into other tokens."""


class TreeGrower:
    """The drafters of one text, a draft model first, and their learnt calibration.

    Growers of several texts may share one `mixer` if their drafters have the same sources.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        pacer: Pacer,
        mixer: Mixer | None = None,
        foresees: bool = True,
    ) -> None:
        """`pacer` chooses where the tree grows. `foresees` is False for an acceptance rule that
        takes probable guesses, not the ones that the target draws."""
        self._drafters = tuple(drafters)
        self._pacer = pacer
        self._foresees = foresees
        self._ready = self._drafters
        """Drafters that can guess after the current text."""
        self.free_only = False
        """True while only drafters without a model guess; the others read nothing."""
        self.free_sources = frozenset(
            {FORCED, *(drafter.source for drafter in self._drafters if drafter.is_free)}
        )
        """Sources whose guesses cost no draft step: drafters without a model, and a grammar."""
        self.mixer = mixer or Mixer()
        models = (each for each in self._drafters if isinstance(each, ModelDrafter))
        self.modelled = next(models, None)
        """The drafter with a draft model."""
        self.step_depth = self.modelled.step_depth if self.modelled else 1
        """Number of consecutive nodes that a step of the draft model adds."""
        self.n_guesses = 0
        """Number of nodes added to trees so far."""

    @property
    def is_ready(self) -> bool:
        """True if a drafter can guess after the current text."""
        return bool(self._ready)

    def begin_text(self, sampler: Sampler, client: str) -> None:
        """Begin a text of `client`, whose draws `sampler` foresees."""
        if not self._foresees:
            sampler = Sampler(SamplingParams())
        for drafter in self._drafters:
            drafter.begin_text(sampler)
            if isinstance(drafter, RemembersTexts):
                drafter.begin_client(client)

    def end_text(self, new: Sequence[int]) -> None:
        """A text has ended, of which no earlier text had computed the tokens `new`."""
        for drafter in self._drafters:
            if isinstance(drafter, RemembersTexts):
                drafter.end_text(new)

    def prepare(
        self, committed: Sequence[int], root_token: int, free_only: bool = False
    ) -> dict[str, str]:
        """Determine which drafters can guess after `committed` and `root_token`, with `free_only`
        among those without a model; the others drop their nodes. Returns reasons by source."""
        self.free_only = free_only
        obstacles = {}
        ready = []
        for drafter in self._drafters:
            if free_only and not drafter.is_free:
                drafter.rest()
                continue
            reason = drafter.obstacle(committed, root_token)
            if reason is None:
                ready.append(drafter)
            else:
                drafter.rest()
                obstacles[drafter.source] = reason
        self._ready = tuple(ready)
        return obstacles

    def catch_up(self, committed: Sequence[int]) -> bool:
        """Let the drafters read the committed tokens that they have not read; False if there are
        none."""
        has_read = False
        for drafter in self._ready:
            has_read |= drafter.catch_up(committed)
        return has_read

    def dry_run(self, committed: Sequence[int], n_tokens: int) -> list[bool]:
        """Truth values: the lookup in the text would have guessed each of the last `n_tokens`, from
        which it learns; none for those of which it would not have been sure."""
        found = []
        for drafter in self._drafters:
            if isinstance(drafter, LookupDrafter):
                for token, opinion in drafter.dry_run(committed, n_tokens):
                    guess = self.mixer.mix([opinion])[0]
                    self.mixer.observe([opinion], token)
                    if guess.confidence >= SURE:
                        found.append(guess.token == token)
        return found

    def is_sure_of_next(self, committed: Sequence[int], root_token: int) -> bool:
        """True if the lookup in the text is sure of the token after `committed` and
        `root_token`."""
        for drafter in self._drafters:
            if isinstance(drafter, LookupDrafter):
                opinion = drafter.next_opinion(committed, root_token)
                if opinion is not None and self.mixer.mix([opinion])[0].confidence >= SURE:
                    return True
        return False

    def begin(self, tree: TokenTree, limits: Limits) -> None:
        """Add the guesses that cost no draft step."""
        for drafter in self._ready:
            if drafter.is_free:
                while self._has_room(tree, limits) and (nodes := drafter.open_nodes(tree)):
                    asked = drafter.step(tree, self._pacer.extend(tree, nodes, limits))
                    self._hang(tree, asked, limits)
                    if not asked:
                        break

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """Nodes at which a drafter that is not free can guess."""
        asked = [drafter.open_nodes(tree) for drafter in self._ready if not drafter.is_free]
        return asked[0] if len(asked) == 1 else sorted({node for open_ in asked for node in open_})

    def step(self, tree: TokenTree, open_nodes: Sequence[int], limits: Limits) -> bool:
        """Make one step of the drafter with the most probable open node; False if there was nothing
        to extend."""
        if not open_nodes or not self._has_room(tree, limits):
            return False
        for drafter, its_nodes in self._turns(tree, open_nodes):
            if asked := drafter.step(tree, self._pacer.extend(tree, its_nodes, limits)):
                self._hang(tree, asked, limits)
                self.begin(tree, limits)
                return True
        return False

    def draft_part(
        self, tree: TokenTree, open_nodes: Sequence[int], limits: Limits
    ) -> PassPart | None:
        """The next step as a part of a pass of the draft model; None if the step is another
        drafter's or has no room."""
        turns = self._turns(tree, open_nodes)
        drafter, its_nodes = turns[0] if turns else (None, ())
        is_possible = its_nodes and len(tree) + 1 < tree.capacity
        if not is_possible or not isinstance(drafter, ModelDrafter):
            return None
        return drafter.part(tree, self._pacer.extend(tree, its_nodes, limits))

    def observe_logits(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Pass the target's `logits` [len(nodes), n_vocab] after `nodes` to the drafters."""
        for drafter in self._ready:
            drafter.observe_logits(tree, nodes, logits)

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> TokenTree:
        """Re-root the tree at `root`, a child of the end of the accepted `path`.

        Updates the calibration from the path, and adds guesses that were too improbable below the
        old root but are not below the new one.
        """
        for node, picked in pairwise([*path, root]):
            self.mixer.observe(self._opinions(int(tree.key[node])), int(tree.token[picked]))
        for drafter in self._ready:
            drafter.follow(tree, path, root)
        tree = tree.reroot(root)
        for node in range(len(tree)):
            self._hang_opinions(tree, node)
        return tree

    def rest(self) -> None:
        """Drop all nodes of the drafters and keep the committed text, which may fall behind."""
        for drafter in self._drafters:
            drafter.rest()

    def rewind(self, n_tokens: int) -> None:
        """Drop all nodes of the drafters and all but the first `n_tokens` of the text."""
        for drafter in self._drafters:
            drafter.rewind(n_tokens)

    def cancel(self) -> None:
        """Make a running call raise `Cancelled` soon; callable from any thread."""
        for drafter in self._drafters:
            drafter.cancel()

    def _turns(
        self, tree: TokenTree, open_nodes: Sequence[int]
    ) -> list[tuple[Drafter, Sequence[int]]]:
        """Drafters that are not free with their open nodes, in descending order of the best one."""
        costly = [drafter for drafter in self._ready if not drafter.is_free]
        if len(costly) == 1:
            return [(costly[0], open_nodes)]
        turns = [(drafter, drafter.open_nodes(tree)) for drafter in costly]
        turns = [(drafter, nodes) for drafter, nodes in turns if nodes]
        return sorted(turns, key=lambda turn: -float(tree.cumulative[turn[1]].max()))

    def _has_room(self, tree: TokenTree, limits: Limits) -> bool:
        """True if the tree may get further guesses."""
        return len(tree) + 1 < tree.capacity

    def _hang(self, tree: TokenTree, asked: Sequence[int], limits: Limits) -> None:
        """Add the guesses below the nodes at which a drafter was asked."""
        for node in asked:
            self._hang_opinions(tree, node)

    def _hang_opinions(self, tree: TokenTree, node: int) -> None:
        """Add the guesses below a node that the pacer chooses, and update the confidences of
        existing ones."""
        opinions = self._opinions(int(tree.key[node]))
        if not opinions:
            return
        guesses = self.mixer.mix(opinions)
        for guess in guesses:
            child = tree.child(node, guess.token)
            if child is not None and guess.confidence != tree.confidence[child]:
                tree.revise(child, guess.confidence)
        for guess in self._pacer.children(tree, node, guesses):
            # one place is reserved for the target's own token
            if len(tree) + 1 < tree.capacity and tree.child(node, guess.token) is None:
                tree.add(node, *guess)
                self.n_guesses += 1

    def _opinions(self, key: int) -> list[Opinion]:
        """Opinions of all drafters about the node with this key."""
        return [opinion for drafter in self._ready if (opinion := drafter.opinion(key)) is not None]


def hang_forced(tree: TokenTree, sampler: Sampler, limits: Limits) -> None:
    """Add the tokens that a grammar forces after the root as one branch, within the limits of a
    pass."""
    node = ROOT
    for token in sampler.forced(min(limits.max_nodes - 1, limits.max_depth)):
        child = tree.child(node, token)
        if child is None:
            if tree.is_full:
                return
            child = tree.add(node, token, FORCED_CONFIDENCE, source=FORCED)
        node = child


def step_ahead(asked: Iterable[tuple[TreeGrower | None, PassPart | None]]) -> None:
    """Evaluate the next steps of several texts in one pass of their common draft model.

    Texts that do not fit make a step of their own later.
    """
    parts: list[PassPart] = []
    drafters: list[ModelDrafter] = []
    for grower, part in asked:
        if grower is None or grower.modelled is None or part is None or not part.nodes:
            continue
        n_nodes = sum(len(one.nodes) for one in (*parts, part))
        if n_nodes <= grower.modelled.model.info.max_nodes:
            parts.append(part)
            drafters.append(grower.modelled)
    if len(parts) > 1:
        for drafter, logits in zip(drafters, drafters[0].model.evaluate(parts), strict=True):
            drafter.ahead = logits.copy()
