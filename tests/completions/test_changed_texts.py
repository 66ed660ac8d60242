"""Timings of answers."""

from __future__ import annotations

from dataclasses import replace

from edgespec.completions import answers
from edgespec.values import GenerationResult, SpeculationStats, Timings


def test_timings_have_the_names_of_llama_cpps_server():
    timings = Timings(prompt_s=2.0, decode_s=0.5, tokens_per_s=8.0)
    result = GenerationResult("", (1,) * 10, (5,) * 5, "length", reused_tokens=2, timings=timings)
    told = answers.timings(result)
    assert (told["cache_n"], told["prompt_n"], told["predicted_n"]) == (2, 8, 5)
    assert (told["prompt_ms"], told["prompt_per_token_ms"]) == (2000.0, 250.0)
    assert (told["predicted_per_second"], told["predicted_per_token_ms"]) == (8.0, 125.0)
    assert "draft_n" not in told
    drafting = answers.timings(replace(result, speculation=SpeculationStats(drafted=9, accepted=4)))
    assert (drafting["draft_n"], drafting["draft_n_accepted"]) == (9, 4)
