"""Acceptance: guesses that become part of the text after their pass, and the end of the text.

A file for each rule, from the paper that it names. `rule` is what all of them implement, `walk`
applies one to a verified tree.
"""

from edgespec.engine.acceptance.bild import Rollback
from edgespec.engine.acceptance.block import BlockVerification
from edgespec.engine.acceptance.exact_replay import ExactReplay
from edgespec.engine.acceptance.lenience import Lenience
from edgespec.engine.acceptance.rejection import RejectionSampling
from edgespec.engine.acceptance.rule import AcceptanceRule, Growth
from edgespec.engine.acceptance.sequoia import WithoutReplacement
from edgespec.engine.acceptance.specinfer import MultiStepRejection
from edgespec.engine.acceptance.spectr import KSequential
from edgespec.engine.acceptance.typical import TypicalAcceptance
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
