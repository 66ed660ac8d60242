"""Ratios that a bench is expected to reach, and whether one did. Ratios travel between machines;
tokens per second do not.
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from edgespec.bench.modes import ENGINE_MODES
from edgespec.bench.report import BenchReport
from edgespec.bench.settings import BenchSettings
from edgespec.config import MOST_CONFIG_BYTES
from edgespec.errors import UsageError
from edgespec.files.regular import read_regular
from edgespec.settings import Settings

BEST = "best"
READS = "reads to raw"
"""Bytes a second that a pass of the mode `paged` reads, to those of the plain read loop."""
_PAGED = ENGINE_MODES[0].name


_KEYS = frozenset({"note", "ratios"})


class Expected(Settings):
    """One ratio."""

    ratio: float = Field(gt=0)
    tolerance: float = Field(gt=0, lt=1)
    """The share of the ratio that it may move without being mentioned."""


class Expectations(Settings):
    """A file of them."""

    note: str
    """Where and how they were measured."""
    bench: dict[str, Any] = Field(default_factory=dict)
    """Settings of the bench that they hold for."""
    ratios: dict[str, Expected] = Field(min_length=1)
    """By name: `MODE to MODE`, `MODE to best` or `reads to raw`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One ratio, expected and measured."""

    name: str
    expected: float
    tolerance: float
    measured: float | None
    """None where a mode has no figures."""

    @property
    def fell(self) -> bool:
        return self.measured is None or self.measured < self.expected * (1 - self.tolerance)

    @property
    def rose(self) -> bool:
        return self.measured is not None and self.measured > self.expected * (1 + self.tolerance)


def read_expectations(path: Path) -> Expectations:
    """Raises UsageError for what is no such file."""
    try:
        content = tomllib.loads(read_regular(path, MOST_CONFIG_BYTES).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"--compare {path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"--compare {path}: not TOML: nested too deep") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--compare {path}: not TOML: {error}") from error
    if lacking := sorted(_KEYS - content.keys()):
        raise UsageError(f"--compare {path} lacks {' and '.join(lacking)}")
    try:
        expectations = Expectations.model_validate(content)
        BenchSettings.model_validate(expectations.bench)
    except UsageError as error:
        raise UsageError(f"--compare {path}: {error}") from error
    for name in expectations.ratios:
        if name != READS and name.count(" to ") != 1:
            raise UsageError(
                f"--compare {path}: the ratio {name!r} is not of the form 'MODE to MODE', "
                f"'MODE to {BEST}' or '{READS}'"
            )
    return expectations


def modes_of(expectations: Expectations) -> set[str]:
    """The modes that they speak of."""
    names = {part for name in expectations.ratios for part in name.split(" to ")}
    return (names - {"reads", "raw", BEST}) | ({_PAGED} if READS in expectations.ratios else set())


def compare(report: BenchReport, expectations: Expectations) -> list[Finding]:
    """Every expected ratio as this report has it."""
    return [
        Finding(name, expected.ratio, expected.tolerance, measured_ratio(report, name))
        for name, expected in expectations.ratios.items()
    ]


def measured_ratio(report: BenchReport, name: str) -> float | None:
    """A ratio by its name, paired over prompts and repetitions."""
    rates = {mode.name: mode.tokens_per_s.median for mode in report.modes}
    if name == READS:
        reads = [mode.disk_bytes_per_s.median for mode in report.modes if mode.name == _PAGED]
        return reads[0] / report.raw_bytes_per_s.median if reads else None
    one, _, other = name.partition(" to ")
    if other == BEST:
        others = {mode: rate for mode, rate in rates.items() if mode != one}
        other = max(others, key=lambda mode: others[mode], default="")
    ratios = _paired(report, one, other)
    return statistics.median(ratios) if ratios else None


def _paired(report: BenchReport, one: str, other: str) -> list[float]:
    rates = {
        mode: {
            (row.prompt, row.repetition): row.decoded.tokens_per_s
            for row in report.rows
            if row.mode == mode
        }
        for mode in (one, other)
    }
    common = rates[one].keys() & rates[other].keys()
    return [rates[one][key] / rates[other][key] for key in common if rates[other][key]]


def comparison_lines(findings: Sequence[Finding]) -> list[str]:
    """What was expected, what came, and what moved."""
    width = max(len(finding.name) for finding in findings)
    lines = [f"{'ratio':<{width}}  expected  measured"]
    for finding in findings:
        measured = "-" if finding.measured is None else f"{finding.measured:.3f}"
        verdict = "fell" if finding.fell else "rose" if finding.rose else "as expected"
        lines.append(
            f"{finding.name:<{width}}  {finding.expected:>8.3f}  {measured:>8}  {verdict} "
            f"(+-{100 * finding.tolerance:.0f}%)"
        )
    return lines
