"""Names of the engine's rules, and what an acceptance rule keeps of the target's text."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from edgespec.extras import added


class RuleName(StrEnum):
    """Names of one kind of rules."""

    @classmethod
    def listed(cls) -> str:
        """The names for a help text."""
        return ", ".join(cls)


class PacerName(RuleName):
    """Rules that decide which branch of the token tree grows next, in `rules.pacer`."""

    BEST_FIRST = "best-first"
    LLMCAD = "llmcad"
    LINEAR = "linear"


class FallbackName(RuleName):
    """Stop rules, which decide when the target verifies: `rules.stop_rules` has them, and the
    round planner is `marginal`."""

    MARGINAL = "marginal"
    LLMCAD = "llmcad"
    FIXED = "fixed"
    FULL = "full"
    HSDDW = "hsddw"
    SPECDECPP = "specdec++"
    DISCO = "disco"
    BILD = "bild"

    @classmethod
    def listed(cls) -> str:
        first, *others = cls
        return f"{first}, which weighs measured times, or {', '.join(others)}"


class Keeps(StrEnum):
    """Part of the target's own text that an acceptance rule keeps."""

    DRAWS = "draws"
    """The text itself: a seed gives what it gives without a draft."""
    DISTRIBUTION = "distribution"
    """The distribution of texts: a seed gives another text, as probable as the target has it."""
    NEITHER = "neither"
    """The draft changes what is written."""


ADDED_ACCEPTANCE = "edgespec.acceptance"
"""Entry point group of other packages' acceptance rules: subclasses of `AcceptanceRule` by name."""


class AcceptanceName(RuleName):
    """Rules that decide which guesses are accepted, with what each keeps of the target's text;
    `rules.acceptance` has them."""

    keeps: Keeps

    def __new__(cls, name: str, keeps: Keeps = Keeps.DISTRIBUTION) -> Self:
        rule = str.__new__(cls, name)
        rule._value_, rule.keeps = name, keeps
        return rule

    EXACT_REPLAY = "exact-replay", Keeps.DRAWS
    REJECTION = "rejection"
    SPECINFER = "specinfer"
    SEQUOIA = "sequoia"
    SPECTR = "spectr"
    BLOCK = "block"
    LENIENCE = "lenience", Keeps.NEITHER
    TYPICAL = "typical", Keeps.NEITHER
    BILD = "bild", Keeps.NEITHER

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """The name of another package's rule."""
        rule = added(ADDED_ACCEPTANCE).get(str(value))
        if rule is None:
            return None
        name = str.__new__(cls, rule.name)
        name._name_ = name._value_ = rule.name
        name.keeps = rule.keeps
        return name

    @classmethod
    def listed(cls) -> str:
        draws, distribution, neither = (
            ", ".join(rule for rule in cls if rule.keeps is kept) for kept in Keeps
        )
        return (
            f"{draws} keeps the target's text; {distribution} keep its distribution, not a seed's "
            f"text; {neither} CHANGE THE TEXT"
        )
