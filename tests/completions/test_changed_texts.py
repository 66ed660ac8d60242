"""Answers whose text is not the target's own say so."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgespec.completions import answers
from edgespec.completions.protocols.openai_replies import TextReply
from edgespec.completions.requests import CompletionRequest
from edgespec.completions.running_request import ChoiceSource, Completion
from edgespec.completions.service import Completions
from edgespec.values import GenerationResult, SpeculationStats, Timings, TokenEvent

TYPICAL = SpeculationStats(acceptance="typical", keeps="neither")


class OneWord:
    def __init__(self, speculation: SpeculationStats) -> None:
        self.result = replace(GenerationResult("a", (1,), (2,), "stop"), speculation=speculation)

    def __iter__(self) -> Any:
        return iter([TokenEvent("a", 2, "target", 0)])

    def cancel(self) -> None: ...

    def close(self) -> None: ...


def completion(speculation: SpeculationStats) -> Completion:
    source = ChoiceSource(lambda: OneWord(speculation))
    session = SimpleNamespace(target=SimpleNamespace(name="fake"), encode=list, piece=bytes)
    service = Completions(cast(Any, session))
    reply = TextReply(service, CompletionRequest.parse({"prompt": "a"}))
    return Completion(service, [source], reply)


@pytest.mark.parametrize("keeps", ["neither", "distribution"])
def test_an_answer_tells_the_rule_and_what_it_keeps(keeps: str) -> None:
    answer = completion(replace(TYPICAL, keeps=keeps)).whole()
    assert answer["acceptance"] == {"rule": "typical", "keeps": keeps}


def test_tokens_that_a_shift_of_the_context_dropped_are_counted():
    result = GenerationResult("", (), (), "length", dropped_tokens=7)
    assert answers.marks(result)["context_shift"] == {"dropped_tokens": 7}


def test_timings_have_the_names_of_llama_cpps_server():
    timings = Timings(prompt_s=2.0, decode_s=0.5)
    result = GenerationResult("", (1,) * 10, (5,) * 5, "length", reused_tokens=2, timings=timings)
    told = answers.marks(result)["timings"]
    assert (told["cache_n"], told["prompt_n"], told["predicted_n"]) == (2, 8, 5)
    assert (told["prompt_ms"], told["predicted_per_second"]) == (2000.0, 10.0)
