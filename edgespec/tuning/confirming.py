"""Confirms choices by short runs in turn, and names the winner.

Which are worth a run, and what they are predicted to bring, it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from edgespec.tuning.cost_model import Choice, Prediction
from edgespec.tuning.gpu_runs import RunLength, run_choice
from edgespec.tuning.measuring import Lab, Measured, Say

LEAST_GAIN = 0.03
"""What is gained by less is taken for noise, however quiet the runs were."""
LEAST_TURNS, MOST_TURNS = 2, 6
LIKELY_TURNS = 2
"""Of all, that there is time for."""
LEAST_CONFIRMING_S = 20.0
"""Even where the time is over: what only was predicted is not chosen."""
GIVEN_UP = 0.05
"""What is slower than the defaults by more is not run again."""
DOUBT = 1.5
"""Times the typical deviation of its ratios, which a gain has to exceed."""
LEAST_TEXTS = 3
"""That a run continues: one says little of others."""
LEAST_TOKENS, FAIR_TOKENS, MOST_TOKENS = 8, 24, 96
"""Of each text of a confirming run. Short ones favour small trees: guesses get better as a text
goes on. Where there is no time for so many as are fair, fewer texts are continued."""
LEAST_ROUNDS = 2
LEAST_RUN_S = 1.0
PATIENCE = 4
"""Times its share of the time, after which a run is cut short."""


@dataclass(slots=True)
class Trial:
    """A choice that was confirmed, or not, by short runs."""

    choice: Choice
    predicted: Prediction
    rates: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    others: float = 0.0
    """Share of the cores that other processes took, the most beside its runs."""
    complaint: str = ""
    """Why it is left out, whatever it reached."""

    @property
    def tokens_per_s(self) -> float:
        return median(self.rates) if self.rates else 0.0


def affordable_trials(lab: Lab, measured: Measured) -> int:
    """So many can make the fewest turns of fair runs in the time that is left, or soon after; two
    if there is time for the shortest."""
    seconds = max(lab.left_s, LEAST_CONFIRMING_S)
    n_texts = min(LEAST_TEXTS, measured.n_texts)
    n_fair, n_short = (
        int(seconds / (LEAST_TURNS * measured.run_s(n_texts, n_tokens)))
        for n_tokens in (FAIR_TOKENS, _least_tokens(measured))
    )
    return max(n_fair, min(2, n_short))


def length_of(measured: Measured, share_s: float) -> RunLength:
    """Of a run that takes `share_s`, or the shortest that says anything."""
    n_texts = measured.n_texts
    while n_texts > LEAST_TEXTS and measured.run_s(n_texts, FAIR_TOKENS) > share_s:
        n_texts -= 1
    token_s = measured.run_s(n_texts, 1) - measured.run_s(n_texts, 0)
    n_tokens = int((share_s - measured.run_s(n_texts, 0)) / token_s)
    n_tokens = min(max(n_tokens, _least_tokens(measured)), MOST_TOKENS)
    return RunLength(n_texts, n_tokens, PATIENCE * share_s)


def _least_tokens(measured: Measured) -> int:
    """Those of a few rounds, of which the last is cut where the text ends."""
    of_rounds = int(LEAST_ROUNDS * measured.first.tokens_per_pass)
    return min(max(LEAST_TOKENS, of_rounds), FAIR_TOKENS)


def confirm(
    lab: Lab, measured: Measured, trials: Sequence[Trial], say: Say, spare_s: float = 0.0
) -> RunLength:
    """Short runs of every trial in turn, as many turns as there is time for until `spare_s` are
    left. All write the same tokens, so as many as fit into a share of the time."""
    if len(trials) == 1:
        say("nothing is predicted to beat the defaults")
    usual, *others = trials
    share_s = max((lab.left_s - spare_s) / (LIKELY_TURNS * len(trials)), LEAST_RUN_S)
    length = length_of(measured, share_s)
    turn, turn_s = 0, 0.0
    while turn < (MOST_TURNS if others else LEAST_TURNS):
        left = [usual, *(t for t in others if not t.complaint and gain_of(t, usual) > -GIVEN_UP)]
        is_enough = turn >= LEAST_TURNS and (len(left) == 1 or lab.left_s - spare_s <= turn_s)
        if is_enough:
            break
        before_s = lab.left_s
        runs = []
        # the one that came last comes first in the next turn: what drifts hits all alike
        for trial in left if turn % 2 == 0 else left[::-1]:
            say(f"run {turn + 1} of {trial.choice.label}")
            written = run_choice(lab, measured, trial.choice, length)
            if isinstance(written, str):
                trial.complaint = written
                continue
            runs.append((trial, written))
            trial.peak_bytes = max(trial.peak_bytes, written.peak_bytes)
        turn_s = before_s - lab.left_s
        if any(run.is_disturbed for _, run in runs) and lab.left_s - spare_s > turn_s > 0:
            say("other processes computed beside that: it is run again")
            continue
        for trial, run in runs:
            trial.rates.append(run.tokens_per_s)
            trial.others = max(trial.others, run.others)
        turn += 1
    return length


def gain_of(trial: Trial, usual: Trial) -> float:
    """Paired: the runs of one turn lie next to each other in time."""
    ratios = _ratios(trial, usual)
    return median(ratios) - 1 if ratios else 0.0


def noise_of(trial: Trial, usual: Trial) -> float:
    """How far its ratios typically lie from their median: a turn that was disturbed does not move
    it much."""
    ratios = _ratios(trial, usual)
    return median(abs(ratio - median(ratios)) for ratio in ratios) if ratios else 0.0


def _ratios(trial: Trial, usual: Trial) -> list[float]:
    """Of the turns that it took part in, which are the first ones."""
    return [rate / other for rate, other in zip(trial.rates, usual.rates, strict=False) if other]


def winner(trials: Sequence[Trial]) -> Choice:
    """The one that gained most; the default unless it was beaten by more than the noise, and again
    after the first turn."""
    usual, *others = trials
    best, best_gain = usual, 0.0
    for trial in others:
        if trial.complaint:
            continue
        gain = gain_of(trial, usual)
        least = max(DOUBT * noise_of(trial, usual), LEAST_GAIN)
        if len(trial.rates) >= LEAST_TURNS and gain > max(least, best_gain):
            best, best_gain = trial, gain
    return best.choice
