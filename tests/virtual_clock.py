"""A virtual clock and the machines that it imitates: passes and draft steps of given costs.

Drafting beside a pass shares the cores with it. A machine may be noisy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgespec.values import PassReport
from virtual_text import chance

Points = tuple[tuple[float, float], ...]

MB_PER_S = 300e6


@dataclass(frozen=True)
class Machine:
    """Costs of passes and draft steps, in seconds."""

    compute: Points
    """Seconds of a pass, by its rows."""
    step_s: float
    """Seconds of a draft step over one row."""
    row_share: float = 0.25
    """Share of it that a further row takes."""
    read_s: float = 0.0
    """Seconds that a pass reads from storage, beside its computing."""
    draft_share: float = 0.05
    """The draft's size, as a share of the target's."""
    burst: float = 1.0
    """Times as long as passes and draft steps take in four rounds of twelve: other work."""
    noise: float = 0.0
    """Share of passes that take 1.5 to 3 times as long, and draft steps before them."""
    tail: float = 0.0
    """Exponent of a heavy tail: one pass of n takes at least n^tail times as long."""
    slow_start: float = 1.0
    """Times as long as the first pass after that over the prompt takes."""
    seed: int = 0
    """Seed of the noise."""
    used_share: float = 1.0
    all_experts_s: float = 0.0
    """Share of a mixture's experts that a token uses, and seconds of reading all experts."""
    latency_s: float = 0.0
    """Additional seconds of a pass: the way to another machine and back."""
    attention_s: float = 0.0
    """Additional seconds of a row for each token before it."""

    def compute_s(self, n_rows: int, n_context: float = 0) -> float:
        x, y = zip(*self.compute, strict=True)
        beyond = max(0.0, n_rows - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2])
        attention_s = self.attention_s * n_context * n_rows
        return float(np.interp(n_rows, x, y)) + beyond + self.latency_s + attention_s

    def choice_s(self, n_rows: int) -> float:
        return self.all_experts_s * float(1 - (1 - self.used_share) ** (n_rows**0.75))

    def draft_s(self, n_rows: int) -> float:
        return self.step_s * (1 + self.row_share * (n_rows - 1))


@dataclass
class Pass:
    """A pass of the target as it goes on."""

    read_s: float
    compute_s: float
    begun: float
    progress: float = 0.0
    stall_s: float = 0.0

    def advance(self, seconds: float, share: float) -> None:
        """Go on for so long with `share` of the cores."""
        rate = self.rate(share)
        self.progress += rate * seconds
        self.stall_s += max(0.0, 1 - self.compute_s * rate / share) * seconds

    def rate(self, share: float) -> float:
        return 1 / max(self.read_s, self.compute_s / share, 1e-9)

    def left_s(self, share: float) -> float:
        return max(0.0, 1 - self.progress) / self.rate(share)


@dataclass
class Clock:
    """Tells the virtual time, and lets models spend it."""

    machine: Machine
    now: float = 0.0
    n_passes: int = 0
    running: Pass | None = None
    beside_s: float = 0.0
    n_context: float = 0
    """Tokens of the text before the next pass."""

    def __call__(self) -> float:
        return self.now

    def draft(self, n_rows: int) -> PassReport:
        """A draft step, alone or beside a pass that gets half of the cores, if it needs them."""
        begun, work_s = self.now, self.slowness * self.machine.draft_s(n_rows)
        if self.running is not None and self.running.progress < 1:
            going = self.running
            own = 1 - going.compute_s * going.rate(0.5)
            beside_s = min(work_s / own, going.left_s(0.5))
            going.advance(beside_s, 0.5)
            self.now += beside_s
            work_s -= own * beside_s
        self.now += work_s
        return PassReport(wall_s=self.now - begun, n_tokens=n_rows)

    @property
    def slowness(self) -> float:
        """Times as long as everything takes now."""
        machine, n = self.machine, self.n_passes
        times = machine.burst if n % 12 in (4, 5, 6, 7) else 1.0
        if chance(machine.seed, "noise", n) < machine.noise:
            times *= 1.5 + 1.5 * chance(machine.seed, "times", n)
        times *= (1 - chance(machine.seed, "tail", n)) ** -machine.tail
        return times * (machine.slow_start if n == 1 else 1.0)

    def begin_pass(self, n_rows: int) -> None:
        slow, self.n_passes = self.slowness, self.n_passes + 1
        read_s, compute_s = self.machine.read_s, self.machine.compute_s(n_rows, self.n_context)
        self.running = Pass(slow * read_s, slow * compute_s, self.now)

    def end_pass(self, n_rows: int) -> PassReport:
        going = self.running
        assert going is not None
        left_s = going.left_s(1.0)
        going.advance(left_s, 1.0)
        choice_s = self.machine.choice_s(n_rows)
        self.now += left_s + choice_s
        self.running = None
        return PassReport(
            wall_s=self.now - going.begun,
            stall_s=going.stall_s + choice_s,
            choice_stall_s=choice_s,
            first_row_stall_s=self.machine.choice_s(1),
            bytes_read=int(self.machine.read_s * MB_PER_S),
            read_s=going.read_s,
            n_tokens=n_rows,
        )


def slowed(machine: Machine, times: float) -> Machine:
    """The machine with slower cores; its storage is what it was."""
    return replace(machine, compute=scaled(machine.compute, times), step_s=times * machine.step_s)


def scaled(points: Points, factor: float) -> Points:
    return tuple((n, factor * seconds) for n, seconds in points)


AMD: Points = ((1, 0.040), (2, 0.074), (8, 0.160), (13, 0.233), (96, 1.45))
REPACKED: Points = ((1, 0.012), (2, 0.024), (5, 0.030), (8, 0.036), (12, 0.049), (32, 0.13))
GGUF: Points = ((1, 0.06), (2, 0.10), (8, 0.25), (32, 0.70), (96, 2.0))
TINY: Points = ((1, 0.004), (2, 0.0055), (8, 0.012), (32, 0.035), (96, 0.1))
IN_MEMORY: Points = (
    (1, 0.0112),
    (2, 0.0145),
    (4, 0.021),
    (8, 0.033),
    (16, 0.056),
    (32, 0.11),
    (96, 0.3),
)

HEAD: Points = ((1, 0.013), (2, 0.0234), (4, 0.0351), (8, 0.0611), (16, 0.12), (96, 0.72))
TWO_CORES: Points = ((1, 0.02), (2, 0.034), (4, 0.052), (8, 0.076), (16, 0.13), (96, 0.75))

MACHINES: dict[str, Machine] = {
    "resident": Machine(AMD, 0.002),
    "resident, repacked": Machine(REPACKED, 0.001, draft_share=0.01),
    "resident, large draft": Machine(TINY, 0.002, draft_share=0.5),
    "resident, tiny": Machine(TINY, 0.0004, draft_share=0.1),
    "in memory": Machine(IN_MEMORY, 0.0011, row_share=0.09),
    "two cores, a head": Machine(HEAD, 0.002, draft_share=0.13),
    "30 %, 300 MB/s": Machine(GGUF, 0.005, read_s=2.33),
    "50 %, 300 MB/s": Machine(GGUF, 0.005, read_s=1.67),
    "80 %, 300 MB/s": Machine(GGUF, 0.005, read_s=0.67),
    "30 %": Machine(GGUF, 0.005, read_s=0.47),
    "50 %": Machine(GGUF, 0.005, read_s=0.33),
    "80 %": Machine(GGUF, 0.005, read_s=0.13),
    "50 %, 1 thread": Machine(scaled(GGUF, 2), 0.009, read_s=0.33),
    "80 %, 300 MB/s, 1 thread": Machine(scaled(GGUF, 2), 0.009, read_s=0.67),
    "resident, tiny, 20 ms away": Machine(TINY, 0.0004, draft_share=0.1, latency_s=0.02),
    "mixture": Machine(scaled(GGUF, 0.4), 0.005, read_s=0.2, used_share=0.25, all_experts_s=1.2),
}
FEW_MACHINES = ("resident", "resident, tiny", "50 %, 300 MB/s", "80 %", "mixture")
"""Those of fast tests: one of each kind."""
