"""The noise of draws: a function of seed, position and token, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.rules.noise import MAX_LEVEL, Noise

N_TOKENS = 4096


def noise(seed: int, position: int, n_tokens: int = N_TOKENS) -> np.ndarray:
    return Noise(seed).gumbel(position, np.arange(n_tokens))


@pytest.mark.parametrize(
    ("seed", "position", "token", "expected"),
    [
        (0, 0, 0, 1.9016413323829038),
        (0, 0, 151_935, 0.9235680231811331),
        (0, 1, 0, 1.5938371952247972),
        (1, 0, 0, -0.16769606517123758),
        (2**64, 7, 3, 0.3040981931442663),
        (2**200 + 5, 100_000, 262_143, -0.6525993076944385),
    ],
)
def test_golden_values_hold_on_every_platform(
    seed: int, position: int, token: int, expected: float
) -> None:
    (number,) = Noise(seed).gumbel(position, np.array([token]))
    assert number == pytest.approx(expected, rel=1e-12)


def test_a_token_has_the_same_noise_alone_and_among_others() -> None:
    alone = [float(Noise(3).gumbel(5, np.array([token]))[0]) for token in (0, 17, 4095)]
    assert alone == [float(one) for one in noise(3, 5)[[0, 17, 4095]]]


def test_it_is_standard_gumbel() -> None:
    numbers = np.concatenate([noise(seed, position) for seed in range(5) for position in range(5)])
    assert numbers.mean() == pytest.approx(0.5772, abs=0.01)
    assert numbers.var() == pytest.approx(np.pi**2 / 6, abs=0.02)
    uniform = np.exp(-np.exp(-np.sort(numbers)))
    expected = (np.arange(len(uniform)) + 0.5) / len(uniform)
    assert np.abs(uniform - expected).max() < 1.63 / np.sqrt(len(uniform))  # Kolmogorov, 1 %


@pytest.mark.parametrize(
    "neighbours",
    [
        [(seed, 0) for seed in range(24)],
        [(0, position) for position in range(24)],
        [(n, n) for n in range(24)],
        [(n, 23 - n) for n in range(24)],
        [(1 << n, 0) for n in range(24)],
    ],
    ids=["seeds", "positions", "both", "opposite", "powers"],
)
def test_neighbouring_seeds_and_positions_are_uncorrelated(
    neighbours: list[tuple[int, int]],
) -> None:
    """A hash that adds up its inputs fails: its rows are shifted copies of each other."""
    rows = np.array([noise(*each) for each in neighbours])
    between = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(between).max() < 5 / np.sqrt(N_TOKENS)
    for shift in (1, 2, 5):
        shifted = np.corrcoef(rows[:, shift:], rows[:, :-shift])
        assert np.abs(shifted[: len(rows), len(rows) :]).max() < 5 / np.sqrt(N_TOKENS - shift)


@pytest.mark.parametrize("stride", [1, 2, 64, 4096])
def test_neighbouring_tokens_are_uncorrelated(stride: int) -> None:
    numbers = np.concatenate([noise(9, position, 8192) for position in range(8)])
    lagged = np.corrcoef(numbers[stride:], numbers[:-stride])[0, 1]
    assert abs(lagged) < 5 / np.sqrt(len(numbers))


@pytest.mark.parametrize("level", [-MAX_LEVEL - 1, -1.0, 0.0, 3.0, 8.0, MAX_LEVEL + 1])
def test_tokens_above_a_level_are_found_without_their_logarithms(level: float) -> None:
    found = Noise(4).above(level, 2, 20_000)
    assert found.tolist() == np.flatnonzero(noise(4, 2, 20_000) >= level).tolist()
