"""Walks down a verified tree by an acceptance rule, at most to the end of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.engine.acceptance.rule import AcceptanceRule
from edgespec.engine.filters import Logits
from edgespec.engine.request import ActiveRequest
from edgespec.tree import ROOT, TARGET, TokenTree
from edgespec.values import TokenEvent


@dataclass(frozen=True, slots=True)
class Accepted:
    """The tokens of a round: accepted guesses, and the target's own token after them."""

    path: tuple[int, ...]
    """Nodes after which tokens were picked: the root first, each the parent of the next."""
    events: tuple[TokenEvent, ...]
    """The tokens picked after each node of the path."""
    failure: Exception | None = None
    """Error of the rule or the sampler after the last token, if any."""

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
    """Walk down from the root until the text ends or no verified guess is accepted.

    `logits` are the target's after each node, float32 [len(nodes), n_vocab]. The request's sampler
    and transcript accept every token. An error is raised if no token was picked before it.
    """
    sampler, transcript = request.sampler, request.transcript
    after: dict[int, Logits] = dict(zip(nodes, logits, strict=True))
    path: list[int] = []
    events: list[TokenEvent] = []
    failure = None
    node: int | None = ROOT
    picks = rule.picks(tree, after, sampler)
    while node in after and not transcript.is_finished:
        try:
            token = next(picks)
            sampler.accept(token, after[node])
        except StopIteration:
            break
        except Exception as error:
            if not path:
                raise
            failure = error
            break
        path.append(node)
        round_ = len(request.tally.outcomes)
        event = transcript.take(token, "draft", round_, sampler.latest_logprobs)
        node = tree.child(node, token)
        events.append(event if node is None else replace(event, source=tree.source[node]))
    events[-1] = replace(events[-1], origin="target", source=TARGET)
    return Accepted(tuple(path), tuple(events), failure)
