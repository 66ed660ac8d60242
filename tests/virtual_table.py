"""The virtual clock's table: how fast the engine's texts are, relative to no draft.

A cell is a machine, a draft and a temperature; its texts differ in prompt, seed and in what earlier
texts taught. All figures are tokens a second with a draft to those without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import geometric_mean

from virtual_clock import MACHINES, TWO_CORES, Machine
from virtual_pair import Kept, Measured, run
from virtual_text import TEXTS, RepeatingText, VirtualText

N_TOKENS = 48
NOISE = {"noise": 0.3, "slow_start": 3.0}
"""Three of ten passes are held up, the first one after a prompt most of all."""

TABLE: dict[str, Machine] = {
    name: MACHINES[name]
    for name in (
        "resident",
        "resident, repacked",
        "resident, tiny",
        "in memory",
        "50 %, 300 MB/s",
        "80 %, 300 MB/s",
        "50 %",
        "80 %",
        "resident, tiny, 20 ms away",
        "mixture",
    )
} | {
    f"{name}, noisy": replace(MACHINES[name], **NOISE)  # type: ignore[arg-type]
    for name in ("in memory", "80 %")
}


REPEATING = "repeating"
"""Texts that repeat themselves, with a draft that is never right and lookups."""
IN_MEMORY: dict[str, Machine] = {
    "resident": MACHINES["resident"],
    "resident, repacked": MACHINES["resident, repacked"],
    "two cores": Machine(TWO_CORES, 0.002),
}
REPEATING_TABLE: dict[str, Machine] = IN_MEMORY | {
    f"{name}, heavy tail": replace(machine, tail=0.3, slow_start=3.0)
    for name, machine in IN_MEMORY.items()
}
"""Machines of texts that repeat themselves. Of passes with a heavy tail one in ten takes twice as
long, one in a hundred four times."""


@dataclass(frozen=True)
class TableText:
    """One text of the table."""

    machine: str
    draft: str
    temperature: float
    n_prompt: int
    seed: int
    is_first: bool
    """False if the pair has written two other texts before."""
    n_tokens: int = N_TOKENS

    @property
    def virtual_machine(self) -> Machine:
        table = REPEATING_TABLE if self.draft == REPEATING else TABLE
        return replace(table[self.machine], seed=self.seed)

    @property
    def text(self) -> VirtualText:
        text: VirtualText = RepeatingText(0.0, n_prose=20 + self.seed % 3 * 20)
        sure = text.sure
        if self.draft != REPEATING:
            text = TEXTS[self.draft]
            sure = 4.0 if self.temperature else text.sure
        return replace(text, n_prompt=self.n_prompt, seed=self.seed, sure=sure)


VARIANTS = ((0.0, 35, True), (0.0, 120, False), (0.0, 6, True), (1.0, 35, True))
"""Temperature, tokens of the prompt, and whether the text is the pair's first."""


def cases(
    machines: Iterable[str] = TABLE, drafts: Iterable[str] = TEXTS, seeds: Iterable[int] = (0, 1)
) -> Iterator[TableText]:
    """The table's texts: 288 with the defaults."""
    drafts, seeds = list(drafts), list(seeds)
    for machine in machines:
        for draft in drafts:
            for temperature, n_prompt, is_first in VARIANTS:
                for seed in seeds:
                    yield TableText(machine, draft, temperature, n_prompt, seed, is_first)


def repeating_cases() -> Iterator[TableText]:
    """Texts of 96 tokens that repeat themselves from the 20th, 40th or 60th on."""
    for case in cases(REPEATING_TABLE, [REPEATING], range(3)):
        yield replace(case, n_tokens=96)


def gain(case: TableText) -> float:
    """Tokens a second of a text to those without a draft."""
    machine, memory = case.virtual_machine, Kept()
    rules = {"temperature": case.temperature, "lookup": case.draft == REPEATING}
    if not case.is_first:
        for n in (1, 2):
            other = replace(case.text, seed=case.seed + n)
            before = replace(machine, seed=machine.seed + n)
            run(before, other, case.n_tokens, memory=memory, **rules)
    (drafted,) = run(machine, case.text, case.n_tokens, memory=memory, **rules)
    return drafted.tokens_per_s / _plain(machine, case.n_prompt, case.n_tokens).tokens_per_s


@cache
def _plain(machine: Machine, n_prompt: int, n_tokens: int) -> Measured:
    """Tokens without a draft, whatever they are: only their number takes time."""
    (alone,) = run(machine, VirtualText(0.0, n_prompt=n_prompt), n_tokens, drafts=False)
    return alone


def session_gain(machine: Machine, texts: Sequence[VirtualText], n_tokens: int) -> float:
    """Tokens a second of the texts of a session, each with what the earlier ones taught, to those
    without a draft. Passes are timed in the first one; in others that counts."""
    memory, drafted_s, alone_s = Kept(), 0.0, 0.0
    for n, text in enumerate(texts):
        drafted = run(machine, text, n_tokens, memory=memory)[0]
        drafted_s += drafted.seconds + (drafted.timing_s if n else 0.0)
        alone_s += _plain(machine, text.n_prompt, n_tokens).seconds
    return alone_s / drafted_s


@dataclass(frozen=True)
class Figures:
    """The gains of some texts."""

    mean: float
    """Geometric mean."""
    least: float
    n_below: int
    """Number of texts below `BOUND`."""
    n_texts: int

    def __str__(self) -> str:
        below = f"{self.n_below} of {self.n_texts} below {BOUND}"
        return f"{self.mean:6.3f}  least {self.least:.3f}  {below}"


BOUND = 0.92
"""Least gain of a text of 64 tokens."""


def figures(gains: Sequence[float]) -> Figures:
    return Figures(geometric_mean(gains), min(gains), sum(one < BOUND for one in gains), len(gains))
