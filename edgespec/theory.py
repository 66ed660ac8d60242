"""The formulas that decide speed, each with its source. Pure arithmetic; it measures nothing.

`plan`, `tune`, `bench`, `doctor` and the engine use these, so that each quantity has one formula.
It takes numpy's arrays and does not import numpy, which `--help` does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Numbers = TypeVar("Numbers", float, "NDArray[np.float64]")


def pass_seconds(bytes_per_pass: float, disk_bytes_per_s: float, compute_s: float = 0.0) -> float:
    """One pass over the weights: reading the streamed ones or computing, whichever takes longer.

    The paging bound: a ring lets the two overlap, and nothing lets either be left out.
    """
    return max(bytes_per_pass / disk_bytes_per_s, compute_s)


def seconds_per_token(pass_s: float, tokens_per_pass: float, draft_s: float = 0.0) -> float:
    """A round is a pass and the drafting that it does not hide; it yields `tokens_per_pass`."""
    return (pass_s + draft_s) / tokens_per_pass


def chosen_share(used_share: float, n_rows: Numbers) -> Numbers:
    """The share of a layer's experts that so many neighbouring rows choose together, where one row
    uses `used_share` of them.

    Independent choices would be 1 - (1 - used)^n; neighbours choose alike, about as n to the power
    of 3/4 independent rows do (measured on a trained mixture of 16 experts, 4 used: 4, 10.1, 12.8
    and 13.7 for 1, 4, 8 and 16 rows).
    """
    unused: Numbers = (1 - used_share) ** (n_rows**0.75)
    return 1 - unused
