"""DISCO's rule: verify when a classifier expects the next guess to be rejected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.stop_rules.rule import RoundSoFar, StopRule
from edgespec.settings.rule_names import FallbackName
from edgespec.tree import ROOT


@dataclass(frozen=True, slots=True)
class PredictedAcceptance(StopRule):
    """DISCO: Mamou et al., arXiv 2405.04304.

    Verify when the predicted chance of the newest guess falls below a threshold. Features are the
    paper's: how probable the guess is, the entropy there, the position in the branch. The paper
    trains a network beforehand; here a logistic regression is trained on what was accepted.
    """

    name: ClassVar[str] = FallbackName.DISCO
    pace: ClassVar[float] = 0.05
    """Step of the stochastic gradient."""

    threshold: float = 0.4
    weights: tuple[float, ...] = (0.5, 1.0, 0.0, 0.0)
    """Weights of one, the log odds of the guess, the entropy and the position."""

    def fires(self, so_far: RoundSoFar) -> bool:
        node, tree = so_far.best_open, so_far.tree
        if node is None or node == ROOT:
            return node is None
        unsure = tree.entropy(int(tree.parent[node]))
        position = int(tree.depth[node]) - 1
        return self.chance(_features(float(tree.confidence[node]), unsure, position)) < (
            self.threshold
        )

    def observe(self, outcome: RoundOutcome) -> Self:
        after = self
        for position, node in enumerate(outcome.path_nodes):
            features = _features(node.claimed, node.entropy, position)
            missed = node.was_right - after.chance(features)
            weights = zip(after.weights, features, strict=True)
            after = replace(after, weights=tuple(w + self.pace * missed * x for w, x in weights))
        return after

    def chance(self, features: Sequence[float]) -> float:
        """Predicted probability that a guess is accepted."""
        total = sum(w * x for w, x in zip(self.weights, features, strict=True))
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


def _features(confidence: float, unsure: float, position: int) -> tuple[float, ...]:
    p = min(max(confidence, 1e-3), 1 - 1e-3)
    return (1.0, math.log(p / (1 - p)), unsure, position / 8)
