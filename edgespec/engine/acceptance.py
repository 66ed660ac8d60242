"""Acceptance: guesses that become part of the text after their pass, and the end of the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from edgespec.engine.request import ActiveRequest
from edgespec.engine.sampling import Logits, Sampler
from edgespec.settings.config import AcceptanceName
from edgespec.tree import ROOT, TokenTree
from edgespec.values import TokenEvent


class AcceptanceRule(Protocol):
    """Picks the token after one verified node. To add a rule, write it and register it."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    """True if the text is, for every seed, the one that the target writes without a draft. A rule
    that only keeps the distribution of texts is not lossless."""

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        """The token that follows `node`; a guess below the node that carries it is accepted.

        `after` holds the target's logits [n_vocab] after each verified node. The sampler has taken
        every token down to `node`, and takes the one that is returned afterwards.
        """


class ExactReplay:
    """The target's own sampler picks at each node; a guess is accepted if it is the token picked.

    What the tree holds cannot change the text, only how many tokens a pass yields: the sampler
    meets the same logits, the same recent tokens and the same random draws as without a draft.
    """

    name: ClassVar[str] = AcceptanceName.EXACT_REPLAY
    lossless: ClassVar[bool] = True

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        return sampler.draw(after[node])


ACCEPTANCE_RULES: dict[str, Callable[[], AcceptanceRule]] = {ExactReplay.name: ExactReplay}


@dataclass(frozen=True, slots=True)
class Accepted:
    """Tokens that a round adds to the text: accepted guesses, and the target's own after them."""

    path: tuple[int, ...]
    """Nodes after which a token was picked: the root first, each the parent of the next."""
    events: tuple[TokenEvent, ...]
    """The token picked after each node of the path."""
    failure: Exception | None = None
    """Failure of the rule or the sampler after the last token, if there was one."""

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events]


def accept(
    rule: AcceptanceRule,
    tree: TokenTree,
    nodes: Sequence[int],
    logits: np.ndarray,
    request: ActiveRequest,
) -> Accepted:
    """Walk down from the root, a token a node, until the text ends or no verified guess is right.

    `logits` is float32 [len(nodes), n_vocab]: the target's, after each node. The request's sampler
    and transcript take every token. A failure is raised where nothing was picked before it.
    """
    sampler, transcript = request.sampler, request.transcript
    after: dict[int, Logits] = dict(zip(nodes, logits, strict=True))
    path: list[int] = []
    events: list[TokenEvent] = []
    failure = None
    node: int | None = ROOT
    while node in after and not transcript.is_finished:
        try:
            token = rule.pick(tree, node, after, sampler)
            sampler.accept(token, after[node])
        except Exception as error:
            if not path:
                raise
            failure = error
            break
        path.append(node)
        round_ = len(request.tally.outcomes)
        events.append(transcript.take(token, "draft", round_, sampler.latest_logprobs))
        node = tree.child(node, token)
    events[-1] = replace(events[-1], origin="target")
    return Accepted(tuple(path), tuple(events), failure)
