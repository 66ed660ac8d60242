"""Acceptance rules: which guesses of a verified tree become part of the text.

`rule` has the interface and the default; the others are grouped by what they do with guesses:
`drawn` and `lossy`.
"""

from edgespec.rules.acceptance.drawn import (
    BlockVerification,
    KSequential,
    Lenience,
    MultiStepRejection,
    RejectionSampling,
    WithoutReplacement,
)
from edgespec.rules.acceptance.lossy import Rollback, TypicalAcceptance
from edgespec.rules.acceptance.rule import AcceptanceRule, ExactReplay, Growth

__all__ = ["ACCEPTANCE_RULES", "AcceptanceRule", "ExactReplay", "Growth"]

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
