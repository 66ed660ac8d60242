"""Acceptance rules: which guesses of a verified tree become part of the text.

`rule` has the interface, the default and the walk down a tree; the others are grouped by what they
do with guesses: `drawn` and `lossy`.
"""

from edgespec.engine.acceptance.drawn import (
    BlockVerification,
    KSequential,
    Lenience,
    MultiStepRejection,
    RejectionSampling,
    WithoutReplacement,
)
from edgespec.engine.acceptance.lossy import Rollback, TypicalAcceptance
from edgespec.engine.acceptance.rule import AcceptanceRule, ExactReplay, Growth, accept

__all__ = ["ACCEPTANCE_RULES", "AcceptanceRule", "ExactReplay", "Growth", "accept"]

ACCEPTANCE_RULES: dict[str, type[AcceptanceRule]] = {
    rule.name: rule
    for rule in (
        ExactReplay,
        RejectionSampling,
        MultiStepRejection,
        WithoutReplacement,
        KSequential,
        BlockVerification,
        Lenience,
        TypicalAcceptance,
        Rollback,
    )
}
