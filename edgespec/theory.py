"""The formulas that decide speed, each with its source. Pure arithmetic; it measures nothing.

Each stands here once: the round planner uses it, and whatever is predicted before a run is asked of
the round planner. It takes numpy's arrays and does not import numpy, which `--help` does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Numbers = TypeVar("Numbers", float, "NDArray[np.float64]")


USUAL_SHARING = 0.75
"""Power of a number of neighbouring rows that gives the number of independent ones which choose as
many experts (measured on a trained mixture of 16 experts, 4 used: 4, 10.1, 12.8 and 13.7 for 1, 4,
8 and 16 rows)."""


def chosen_share(used_share: float, n_rows: Numbers, sharing: float = USUAL_SHARING) -> Numbers:
    """The share of a layer's experts that so many neighbouring rows choose together, where one row
    uses `used_share` of them.

    Independent choices would be 1 - (1 - used)^n. Neighbours choose alike: n rows choose as many as
    n^sharing independent ones.
    """
    unused: Numbers = (1 - used_share) ** (n_rows**sharing)
    return 1 - unused


MAX_ACCEPTED, GUESSES_FOR_HALF = 5.0, 12.0
"""Guesses accepted of a tree without end, and the guesses of a tree that brings half of them."""


def tree_tokens(n_guesses: Numbers) -> Numbers:
    """Tokens that a pass over the best tree of so many guesses usually yields.

    Of 48 guesses' tokens, trees of 16, 32, 64, 96 and 128 yielded 0.76, 0.93, 1.05, 1.09 and 1.12
    (medians over three pairs and three prompt sets); this says 0.77, 0.93, 1.04, 1.09 and 1.11.
    """
    return 1 + MAX_ACCEPTED * n_guesses / (n_guesses + GUESSES_FOR_HALF)
