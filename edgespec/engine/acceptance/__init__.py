"""Acceptance: guesses that become part of the text after their pass, and the end of the text.

`rule` is what all rules have in common, `walk` applies one to a verified tree.
"""

from edgespec.engine.acceptance.drawn import (
    BlockVerification,
    KSequential,
    MultiStepRejection,
    RejectionSampling,
    WithoutReplacement,
)
from edgespec.engine.acceptance.lossy import Lenience, Rollback, TypicalAcceptance
from edgespec.engine.acceptance.rule import AcceptanceRule, ExactReplay, Growth
from edgespec.engine.acceptance.walk import Accepted, accept

__all__ = ["ACCEPTANCE_RULES", "AcceptanceRule", "Accepted", "ExactReplay", "Growth", "accept"]

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
