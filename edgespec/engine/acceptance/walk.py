"""The walk down a verified tree by an acceptance rule, to the end of the text at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.engine.acceptance.rule import AcceptanceRule
from edgespec.engine.request import ActiveRequest
from edgespec.engine.sampling import Logits
from edgespec.tree import ROOT, TokenTree
from edgespec.values import TokenEvent


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
        events.append(transcript.take(token, "draft", round_, sampler.latest_logprobs))
        node = tree.child(node, token)
    events[-1] = replace(events[-1], origin="target")
    return Accepted(tuple(path), tuple(events), failure)
