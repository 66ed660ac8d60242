"""Formulas for speed, with their sources. Pure arithmetic; it measures nothing.

The round planner uses them, and all predictions come from the round planner. They accept NumPy
arrays without importing NumPy, which `--help` does not need.
"""

from __future__ import annotations

from typing import Any

USUAL_SHARING = 0.75
"""Exponent: n adjacent rows choose as many distinct experts as n^USUAL_SHARING independent rows
(measured on a trained mixture of 16 experts, 4 used: 4, 10.1, 12.8 and 13.7 for 1, 4, 8 and 16
rows)."""


def chosen_share(used_share: float, n_rows: Any, sharing: Any = USUAL_SHARING) -> Any:
    """Expected share of a layer's experts that `n_rows` adjacent rows choose together.

    One row chooses `used_share`. With independent choices it would be 1 - (1 - used_share)^n, but
    adjacent rows choose similarly: n rows choose as many as n^sharing independent ones.
    """
    return 1 - (1 - used_share) ** (n_rows**sharing)


MAX_ACCEPTED, GUESSES_FOR_HALF = 5.0, 12.0
"""Accepted guesses of an infinite tree, and number of guesses in a tree that gives half of them."""


def tree_tokens(n_guesses: Any) -> Any:
    """Typical number of tokens per pass over the best tree of `n_guesses` guesses.

    Relative to 48 guesses, trees of 16, 32, 64, 96 and 128 yielded 0.76, 0.93, 1.05, 1.09 and 1.12
    (medians over three pairs and three prompt sets); this gives 0.77, 0.93, 1.04, 1.09 and 1.11.
    """
    return 1 + MAX_ACCEPTED * n_guesses / (n_guesses + GUESSES_FOR_HALF)
