"""Expected ratios: read, measured on given rows, judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_rows import MB, report, row
from edgespec.bench.expectations import (
    Finding,
    compare,
    comparison_lines,
    measured_ratio,
    modes_of,
    read_expectations,
)
from edgespec.errors import UsageError

STORED = Path(__file__).parents[1] / "bench_expected.toml"
RATIOS = '[ratios]\n"auto to mmap" = { ratio = 4.0, tolerance = 0.1 }\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "expected.toml"
    path.write_text(text)
    return path


def test_the_stored_file_is_valid_and_says_where_it_was_measured():
    expectations = read_expectations(STORED)
    assert modes_of(expectations) <= set(expectations.bench["modes"].split(","))
    assert {"paged to mmap", "tree to paged", "auto to best", "reads to raw"} <= set(
        expectations.ratios
    )


def test_ratios_are_paired():
    rows = [row("mmap", 1.0), row("auto", 4.0)]
    rows += [row("mmap", 0.5, repetition=1), row("auto", 2.0, repetition=1)]
    assert measured_ratio(report(rows), "auto to mmap") == 4.0


def test_the_best_is_the_best_of_the_others():
    rows = [row("mmap", 1.0), row("tree", 4.0), row("auto", 3.0)]
    assert measured_ratio(report(rows), "auto to best") == 0.75
    assert measured_ratio(report(rows), "tree to best") == pytest.approx(4 / 3)


def test_reads_are_those_of_the_paged_mode():
    """A pass of 100 MB a token at 1.5 tokens/s, where a plain loop reads 300 MB/s."""
    rows = [row("paged", 1.5), row("auto", 9.0)]
    assert measured_ratio(report(rows, 300.0 * MB), "reads to raw") == pytest.approx(0.5)


def test_a_mode_without_figures_has_fallen():
    assert measured_ratio(report([row("auto", 1.0)]), "auto to mmap") is None
    assert Finding("auto to mmap", 4.0, 0.1, None).fell


@pytest.mark.parametrize(
    ("measured", "fell", "rose"),
    [(3.59, True, False), (3.7, False, False), (4.3, False, False), (4.5, False, True)],
)
def test_what_moves_further_than_its_tolerance_fell_or_rose(measured, fell, rose):
    finding = Finding("a to b", 4.0, 0.1, measured)
    assert (finding.fell, finding.rose) == (fell, rose)


def test_every_finding_is_a_line(tmp_path: Path):
    expectations = read_expectations(write(tmp_path, f'note = "here"\n{RATIOS}'))
    findings = compare(report([row("mmap", 1.0), row("auto", 2.0)]), expectations)
    (line,) = comparison_lines(findings)[1:]
    assert line.split() == ["auto", "to", "mmap", "4.000", "2.000", "fell", "(+-10%)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("note =", "not TOML"),
        (RATIOS, "lacks note"),
        (f'note = "n"\n{RATIOS}[bench]\nrepetitons = 2', "did you mean 'repetitions'"),
        ('note = "n"\n' + RATIOS.replace("tolerance", "tolerence"), "did you mean 'tolerance'"),
        ('note = "n"\n[ratios]\n"auto" = { ratio = 1.0, tolerance = 0.1 }', "not of the form"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(UsageError) as refusal:
        read_expectations(write(tmp_path, text))
    assert message in str(refusal.value)
