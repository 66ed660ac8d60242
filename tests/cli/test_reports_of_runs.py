"""Reports of a plan and a generation, for people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgespec.cli.commands.generation_report import generation_report
from edgespec.cli.commands.plan_report import plan_report
from edgespec.memory.budget import MemoryPlan, MemoryRow, plan_memory
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import SegmentSize
from edgespec.settings.units import format_size
from edgespec.values import ExpertStats, GenerationResult, PagingStats, SpeculationStats

MIB = 1 << 20
SEGMENTS = tuple(SegmentSize(f"layer {i}", 100 * MIB, 100 * MIB) for i in range(4))
PAGED = MemoryPlan(
    budget_bytes=400 * MIB,
    rows=(MemoryRow("draft", "weights", 30 * MIB), MemoryRow("target", "unused", 0)),
    segments=SEGMENTS,
    pinned=frozenset({0}),
    ring_bytes=200 * MIB,
    paged=True,
    smallest_bytes=300 * MIB,
    enforced=False,
    notes=("a note",),
)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1536, "1.5 KiB"), (250 * MIB, "250 MiB"), (3 << 29, "1.5 GiB")],
)
def test_sizes_are_short(nbytes: int, text: str):
    assert format_size(nbytes) == text


def test_a_paged_plan_says_what_a_pass_costs():
    text = "\n".join(plan_report(PAGED, 100 * MIB, "as given").lines())
    assert "1 of 4 segments are pinned (100 MiB)" in text
    assert "A pass reads 300 MiB" in text
    assert "3.00 s per token alone" in text
    assert "not enforced on this platform" in text
    assert "a note" in text
    assert "unused" not in text


def test_a_paged_plan_says_what_its_draft_brings_if_it_guesses_like_real_ones():
    text = "\n".join(plan_report(replace(PAGED, max_nodes=17), 100 * MIB, "as given").lines())
    assert "3.00 s per token alone, 0.38 to 2.00 s with this draft" in text
    assert "if it yields 1.5 to 8 tokens a pass, as with real models" in text


def test_a_draft_made_from_the_target_is_promised_what_was_measured():
    text = "\n".join(plan_report(replace(PAGED, max_nodes=17), 100 * MIB, "", measured=6.0).lines())
    assert "0.50 s with 6.0 tokens a pass, as measured when this draft was made" in text


def test_without_a_draft_it_says_what_the_text_itself_would_bring():
    text = "\n".join(
        plan_report(replace(PAGED, rows=PAGED.rows[1:]), 100 * MIB, "as given").lines()
    )
    assert "1.00 to 2.73 s with guesses from the text if they yield 1.1 to 3 tokens a pass" in text


def test_it_says_where_every_row_reads_experts_of_its_own():
    experts = ExpertSizes(24, 256, 2, 1600 * MIB, 1600 * MIB, 64 * MIB, 16 * MIB)
    plan = plan_memory(524 * MIB, [], [SEGMENTS[:1]], experts=experts)
    plan = replace(plan, max_nodes=49)
    text = "\n".join(plan_report(plan, 300e6, "given").lines())
    assert "and guesses hardly pay" in text and ", over " not in text


def test_without_a_bandwidth_there_is_no_prediction():
    assert "per token" not in "\n".join(plan_report(PAGED).lines())
    assert plan_report(PAGED, None).as_dict()["seconds_per_pass"] is None


def test_the_prediction_is_a_number():
    assert plan_report(PAGED, 100 * MIB).as_dict()["seconds_per_pass"] == 3.0


def test_the_summary_of_a_paged_run_names_what_was_read():
    result = GenerationResult(
        "text", (1,), (2, 3), "stop", paging=PagingStats(bytes_read=300 * MIB, passes=2)
    )
    lines = generation_report(result, PAGED, {"total": 1.0}, peak_bytes=390 * MIB).lines()
    assert "paging: 300 MiB read in 2 passes, 0.00 s waited for storage" in lines
    assert any("peak 390 MiB" in line and "not enforced here" in line for line in lines)
    assert not any(line.startswith("draft:") for line in lines)


def test_the_summary_says_why_a_draft_did_nothing():
    drafting = replace(PAGED, max_nodes=17)
    assert drafting.has_draft
    result = GenerationResult("text", (1,), (2, 3), "stop", speculation=SpeculationStats(rounds=2))
    lines = generation_report(result, drafting, {"total": 1.0}, peak_bytes=390 * MIB).lines()
    assert "draft: no guess was tried, since passes without guesses seem faster here" in lines


def test_a_gpus_memory_is_a_table_of_its_own():
    rows = (MemoryRow("draft", "weights of the draft", 20 * MIB),)
    plan = replace(PAGED, gpu_budget_bytes=50 * MIB, gpu_rows=rows)
    assert plan.planned_bytes == PAGED.planned_bytes
    lines = plan_report(plan).lines()
    at = lines.index("")
    table = [" ".join(line.split()) for line in lines[at + 1 :]]
    assert table[0] == "draft weights of the draft 20.0 MiB"
    assert table[1:3] == ["planned on the GPU 20.0 MiB", "budget there 50.0 MiB"]
    assert plan_report(plan, None).as_dict()["gpu_planned_bytes"] == 20 * MIB
    assert "GPU" not in "\n".join(plan_report(PAGED).lines())


def test_a_mixtures_plan_says_what_a_token_chooses_and_what_fits():
    experts = ExpertSizes(24, 16, 4, 1600 * MIB, 1600 * MIB, 64 * MIB, 16 * MIB)
    segments = [SegmentSize(f"layer {i}", MIB, MIB) for i in range(24)]
    plan = plan_memory(524 * MIB, [], [segments], experts=experts)
    text = "\n".join(plan_report(plan, 300e6, "given").lines())
    assert "24 layers choose 4 of 16 experts for a token: 400 MiB of 1.6 GiB" in text
    assert "31% of the experts fit into memory at once" in text
    assert "All 24 segments are pinned" in text


def test_a_plan_says_which_segments_are_slices_of_a_matrix():
    slices = [SegmentSize(f"rows {i}", MIB, MIB, "output.weight") for i in range(5)]
    plan = plan_memory(8 * MIB, [], [[*(SegmentSize(f"{i}", MIB, MIB) for i in range(4)), *slices]])
    assert "5 of the segments are slices of output.weight." in plan_report(plan).lines()


def test_the_summary_of_a_mixture_says_how_many_experts_were_in_memory():
    served = ExpertStats(hits=900, misses=100, bytes_read=50 * MIB, stall_s=1.5)
    paging = PagingStats(bytes_read=50 * MIB, passes=2, experts=served)
    result = GenerationResult("text", (1,), (2, 3), "stop", paging=paging)
    text = "\n".join(generation_report(result, PAGED, {"total": 1.0}, 10 * MIB).lines())
    assert "of 1,000 that layers chose 90% were in memory; 50.0 MiB read, 1.50 s waited" in text
