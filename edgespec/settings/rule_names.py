"""Names of the engine's rules."""

from __future__ import annotations

from enum import StrEnum


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
