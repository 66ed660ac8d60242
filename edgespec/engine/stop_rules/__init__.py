"""Stop rules decide when to stop growing and let the target verify; one file per rule.

By default there is none, and the round planner decides (see `decision`).
"""

from edgespec.engine.stop_rules.bild import FallbackPolicy
from edgespec.engine.stop_rules.disco import PredictedAcceptance
from edgespec.engine.stop_rules.fixed import FixedLength, FullTree
from edgespec.engine.stop_rules.hsddw import EntropyWindow
from edgespec.engine.stop_rules.llmcad import AdaptiveThreshold
from edgespec.engine.stop_rules.rule import RoundSoFar, StopRule
from edgespec.engine.stop_rules.specdecpp import PredictedRejection

__all__ = [
    "STOP_RULES",
    "AdaptiveThreshold",
    "FixedLength",
    "FullTree",
    "RoundSoFar",
    "StopRule",
]

STOP_RULES: dict[str, type[StopRule]] = {
    rule.name: rule
    for rule in (
        AdaptiveThreshold,
        FixedLength,
        FullTree,
        EntropyWindow,
        PredictedRejection,
        PredictedAcceptance,
        FallbackPolicy,
    )
}
"""Stop rules by name, which replace the round planner's choice."""
