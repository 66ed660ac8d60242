"""The formulas that decide speed, each with its source. Pure arithmetic; it measures nothing.

`plan`, `bench` and `doctor` predict with these, so that each quantity has one formula.
"""

from __future__ import annotations


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


def is_worth(gain_tokens: float, cost_s: float, tokens: float, seconds: float) -> bool:
    """Whether something that brings `gain_tokens` for `cost_s` raises the rate of a round that
    brings `tokens` in `seconds`: the marginal value theorem (Charnov, Theoretical Population
    Biology 9, 1976)."""
    return gain_tokens * seconds > tokens * cost_s
