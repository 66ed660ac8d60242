"""Names of the engine's rules, and what an acceptance rule keeps of the target's text."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class PacerName(StrEnum):
    """Rules that decide which branch of the token tree grows next, in `rules.pacer`."""

    BEST_FIRST = "best-first"
    LLMCAD = "llmcad"


class FallbackName(StrEnum):
    """Stop rules, which decide when the target verifies: `rules.stop_rules` has them, and the
    round planner, which weighs measured times, is `marginal`."""

    MARGINAL = "marginal"
    LLMCAD = "llmcad"
    FIXED = "fixed"
    FULL = "full"
    HSDDW = "hsddw"


class Keeps(StrEnum):
    """Part of the target's own text that an acceptance rule keeps."""

    DRAWS = "draws"
    """The text itself: a seed gives what it gives without a draft."""
    DISTRIBUTION = "distribution"
    """The distribution of texts: a seed gives another text, as probable as the target has it."""
    NEITHER = "neither"
    """The draft changes what is written."""


class AcceptanceName(StrEnum):
    """Rules that decide which guesses are accepted, with what each keeps of the target's text;
    `rules.acceptance_rules` has them."""

    keeps: Keeps

    def __new__(cls, name: str, keeps: Keeps = Keeps.DISTRIBUTION) -> Self:
        rule = str.__new__(cls, name)
        rule._value_, rule.keeps = name, keeps
        return rule

    EXACT_REPLAY = "exact-replay", Keeps.DRAWS
    REJECTION = "rejection"
    SPECINFER = "specinfer"
    SEQUOIA = "sequoia"
    LENIENCE = "lenience", Keeps.NEITHER
    TYPICAL = "typical", Keeps.NEITHER
