"""Acceptance rules: which guesses of a verified tree become part of the text.

Each rule has a file with its paper. `rule` has the protocol, `walk` applies a rule to a tree.
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
