"""Predictions for models and machines that are not at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgespec.cli.command_line import main
from edgespec.diagnosis.imagined_models import usual_budget, what_if
from edgespec.errors import BudgetError
from edgespec.memory.budget import MIB
from sentences import hold_sentence

GIB = 1 << 30
PAGE = Path(__file__).parents[1] / "docs" / "machines.md"


def test_a_real_plan_is_similar() -> None:
    """`plan -m qwen2.5-coder --memory-budget 800MiB -c 4096`: 101 segments, 451 MiB pinned."""
    found = what_if("1.54B-Q4_K_M", 800 * MIB, 250e6)
    assert found.plan.pinned_bytes == pytest.approx(451 * MIB, rel=0.05)
    assert found.plan.bytes_per_pass == pytest.approx(433 * MIB, rel=0.15)
    assert found.plan.smallest_bytes == pytest.approx(252 * MIB, rel=0.15)


def test_more_memory_reads_less_until_it_fits() -> None:
    found = [what_if("14B-Q4_K_M", usual_budget(n * GIB), 2e9) for n in (4, 8, 12, 24)]
    seconds = [one.seconds_per_token for one in found]
    assert seconds == sorted(seconds, reverse=True)
    assert [one.plan.paged for one in found] == [True, True, True, False]


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("35B-A3B-Q4_K_M", "Qwen3.6 35B-A3B"),
        ("26B-A4B-Q4_K_M", "Gemma 4 26B-A4B"),
        ("20B-MXFP4", "gpt-oss-20b"),
    ],
)
def test_a_mixture_reads_what_a_token_chooses_and_has_no_draft(name: str, like: str) -> None:
    found = what_if(name, usual_budget(8 * GIB), 1e9)
    experts = found.plan.experts
    assert found.like == like and experts is not None
    assert 0.8 * found.size_bytes < experts.nbytes < 0.95 * found.size_bytes
    assert found.plan.bytes_per_pass < experts.token_bytes
    assert not found.drafted


MODELS = PAGE.with_name("models.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| ([\w.+ -]+) \| [\w-]+ \| ([\d.]+) GB \| ([\d,]+) MiB, \d+ \| .*? \| (.*?) \| .*? \|",
    MODELS,
    re.MULTILINE,
)
"""Models that people fetch: name, size, smallest budget, and bytes that a token reads at 8 GiB."""


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_model_that_people_fetch_is_known_by_name(row: tuple[str, ...]) -> None:
    name, size_gb, smallest_mib, read = row
    found = what_if(name, 8 * GIB, 2e9)
    assert found.size_bytes == pytest.approx(float(size_gb) * 1e9, rel=0.05)
    smallest = found.plan.smallest_bytes
    assert smallest == pytest.approx(float(smallest_mib.replace(",", "")) * MIB, rel=0.25)
    if read.endswith("MB") and name != "Gemma 4 12B":  # which almost fits
        read_bytes = float(read[:-3].replace(",", "")) * 1e6
        assert found.plan.bytes_per_pass == pytest.approx(read_bytes, rel=0.12)


def test_there_are_rows_of_what_people_fetch() -> None:
    assert len(ROWS) > 9 and sum("MB" in row[3] for row in ROWS) > 6


def test_a_hybrid_keeps_keys_in_a_quarter_of_its_layers() -> None:
    plans = [what_if(name, usual_budget(32 * GIB), 1e9).plan for name in ("27B-Q2_0", "32B-Q4_K_M")]
    hybrid, dense = (plan.rows[1].nbytes for plan in plans)
    assert plans[0].rows[1].what.startswith("KV cache")
    assert hybrid < dense / 2


def test_only_drafts_that_fit_and_pay_are_shown() -> None:
    assert not what_if("8B-Q4_K_M", 900 * MIB, 2e9).drafted
    found = what_if("8B-Q8_0", 6 * GIB, 0.5e9)
    assert [one.draft for one in found.drafted] == ["a relative of 0.5B", "-md self"]
    assert all(max(one.seconds_per_token) < found.seconds_per_token for one in found.drafted)


def test_a_budget_that_is_too_small_names_the_smallest() -> None:
    with pytest.raises(BudgetError) as refusal:
        what_if("70B-Q4_K_M", GIB, 1e9)
    assert what_if("70B-Q4_K_M", refusal.value.smallest_bytes or 0, 1e9).plan.paged


def test_the_command_needs_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan --what-if 8B-Q4_K_M --memory-budget 2.5GiB --read-limit 2G"
    assert main(words.split()) == 0
    shown = capsys.readouterr().out
    assert shown.rstrip() in PAGE.read_text(encoding="utf-8")
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--what-if 8B-Q4_0 -md x.gguf", 2),
        ("--what-if 8B-Q4_0 --read-limit fast", 2),
        ("--what-if Qwen3.6-27B-Q9_9", 2),
        ("--what-if Q4_K_M", 2),
        ("--what-if 8B-Q4_0 --memory-budget 64MiB", 4),
    ],
)
def test_what_does_not_fit_together_is_refused(
    flags: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *flags.split()]) == code
    hold_sentence(capsys.readouterr().err, figures=False)
