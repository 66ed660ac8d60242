"""Figures of rows: medians, pairs, the bound of storage, agreement."""

from __future__ import annotations

import pytest

from bench_rows import MB, report, row
from edgespec.bench.summary import (
    Spread,
    TextAgreement,
    summarise,
)


def test_ratios_are_of_pairs_that_ran_together():
    """The second repetition was slow for both: a ratio of medians would not see the pairs."""
    rows = [row("mmap", 1.0), row("auto", 4.0)]
    rows += [row("mmap", 0.5, repetition=1), row("auto", 2.0, repetition=1)]
    rows += [row("mmap", 2.0, repetition=2), row("auto", 6.0, repetition=2)]
    auto = summarise(rows, ["mmap", "auto"], 1.0)[1]
    assert auto.ratio == Spread(4.0, 3.0, 4.0)
    assert auto.tokens_per_s == Spread(4.0, 2.0, 6.0)


def test_a_first_token_that_came_with_its_prompt_is_in_no_rate():
    """A model without guesses had more than one token per pass."""
    [summary] = summarise([row("none", 1.0, accepted=(0, 0, 0))], ["none"], 1.0)
    assert summary.tokens_per_pass == 1.0
    assert summary.tokens_per_s.median == 0.75, "three tokens in four seconds"


def test_a_run_without_its_pair_has_no_ratio():
    rows = [row("mmap", 1.0, prompt="a"), row("auto", 4.0, prompt="b")]
    assert summarise(rows, ["mmap", "auto"], 1.0)[1].ratio is None


def test_the_first_mode_with_rows_is_the_reference():
    rows = [row("paged", 2.0), row("auto", 4.0)]
    paged, auto = summarise(rows, ["mmap", "paged", "auto"], 1.0)
    assert paged.ratio == Spread(1.0, 1.0, 1.0)
    assert auto.ratio == Spread(2.0, 2.0, 2.0)


def test_the_share_of_the_bound_is_the_share_of_the_raw_rate():
    """6 tokens in 2 passes of 100 MB at 1.5 tokens/s read 50 MB/s, a sixth of 300."""
    rows = [row("auto", 1.5, tokens=range(6), accepted=(2, 2))]
    (auto,) = summarise(rows, ["auto"], 300.0 * MB)
    assert auto.tokens_per_pass == 3.0
    assert auto.bound_tokens_per_s == pytest.approx(9.0)
    assert auto.share_of_bound == pytest.approx(1 / 6)
    assert auto.disk_bytes_per_s.median == pytest.approx(50 * MB)


def test_what_reads_nothing_has_no_bound():
    (resident,) = summarise([row("resident", 9.0, pass_bytes=0)], ["resident"], 1.0)
    assert resident.bound_tokens_per_s is None
    assert resident.share_of_bound is None


def test_texts_of_a_library_are_others_at_a_temperature():
    rows = [row("mmap @1", 1.0, tokens=(9, 9)), row("paged @1", 2.0), row("auto @1", 4.0)]
    modes = ["mmap @1", "paged @1", "auto @1"]
    mmap, paged, auto = summarise(rows, modes, 1.0, temperature=1.0, alike=modes[1:])
    assert (mmap.agreement, auto.agreement) == (None, TextAgreement(4, 4))
    assert (auto.reference, auto.text_reference) == ("mmap @1", "paged @1")
    assert auto.ratio == Spread(4.0, 4.0, 4.0)
    assert paged.temperature == 1.0


def test_agreement_adds_up_over_prompts():
    rows = [row("mmap", 1.0, prompt="a"), row("mmap", 1.0, prompt="b", tokens=(7, 8))]
    rows += [row("auto", 1.0, prompt="a"), row("auto", 1.0, prompt="b", tokens=(7, 9, 9))]
    assert summarise(rows, ["mmap", "auto"], 1.0)[1].agreement == TextAgreement(5, 6)


def test_a_report_as_json_holds_every_run():
    content = report([row("mmap", 1.0), row("auto", 2.0)]).as_dict()
    assert content["reference"] == "mmap"
    assert [run["mode"] for run in content["rows"]] == ["mmap", "auto"]
    assert len(content["rows"][0]["decoded"]["rounds"]) == 4
