"""The formulas that decide speed, each with its source. Pure arithmetic; it measures nothing.

`plan`, `tune`, `bench` and `doctor` predict with these, so that each quantity has one formula. It
takes numpy's arrays and does not import numpy, which `--help` does without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens that one pass yields on a line of `gamma` guesses, each right with chance `alpha`.

    (1 - alpha^(gamma+1)) / (1 - alpha): Leviathan et al., arXiv 2211.17192, equation 1.
    """
    if alpha >= 1:
        return gamma + 1.0
    return float((1 - alpha ** (gamma + 1)) / (1 - alpha))


def line_speedup(alpha: float, gamma: int, c: float) -> float:
    """Over decoding alone, where a draft step takes the share `c` of a pass, however many tokens
    the pass verifies: Leviathan et al., arXiv 2211.17192, theorem 3.8."""
    return expected_tokens(alpha, gamma) / (gamma * c + 1)


def pass_seconds(bytes_per_pass: float, disk_bytes_per_s: float, compute_s: float = 0.0) -> float:
    """One pass over the weights: reading the streamed ones or computing, whichever takes longer.

    The paging bound: a ring lets the two overlap, and nothing lets either be left out.
    """
    return max(bytes_per_pass / disk_bytes_per_s, compute_s)


def seconds_per_token(pass_s: float, tokens_per_pass: float, draft_s: float = 0.0) -> float:
    """A round is a pass and the drafting that it does not hide; it yields `tokens_per_pass`."""
    return (pass_s + draft_s) / tokens_per_pass


def tree_tokens(chances: Floats) -> Floats:
    """Tokens that passes over the 1, 2, ... most probable nodes of a tree yield on average, from
    each node's chance to be reached and to be right: the sum of those chances, where the root's is
    1, as the target's own token always stands (Chen et al., Sequoia, arXiv 2402.12374)."""
    likely_last = chances.copy()
    likely_last.sort()
    return likely_last[::-1].cumsum()


def is_worth(gain_tokens: float, cost_s: float, tokens: float, seconds: float) -> bool:
    """Whether something that brings `gain_tokens` for `cost_s` keeps up the rate of a round that
    brings `tokens` in `seconds`: the marginal value theorem (Charnov, Theoretical Population
    Biology 9, 1976)."""
    return gain_tokens * seconds >= tokens * cost_s


def best_round(tokens: Floats, seconds: Floats) -> int:
    """Which of several rounds brings the most tokens a second: where one drafts on until the next
    guess would lower the rate, as `is_worth` says it, this is where one stops."""
    return int((tokens / seconds.clip(1e-9)).argmax())


def at(places: Sequence[tuple[float, float]], x: float) -> float:
    """Between measured places on straight lines, beyond the last on its own line, before the first
    as high as that: what a pass takes is a line over its nodes with a kink or two."""
    (x0, y0), *rest = places
    if x <= x0 or not rest:
        return y0
    for x1, y1 in rest:
        if x <= x1 or (x1, y1) == rest[-1]:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        x0, y0 = x1, y1
    raise AssertionError("the last place ends the loop")


def round_seconds(draft_s: float, compute_s: float, read_s: float, ring_s: float = 0.0) -> float:
    """A round drafts, then makes a pass. Reads go on while it drafts, for as long as the ring has
    room: `ring_s` is what filling it takes."""
    return draft_s + max(compute_s, read_s - min(draft_s, ring_s))
