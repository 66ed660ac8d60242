"""llama.cpp's own ways of decoding, as the bench measures them: the same text, honestly counted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from sentences import refuses

pytest.importorskip("llama_cpp")

from edgespec.errors import ModelError, UsageError
from edgespec.models.embedded import embedded_pair
from edgespec.ports.baselines import BaselineRequest, BaselineRun
from edgespec_runtimes.gguf import baselines, runtime
from edgespec_runtimes.gguf.llama.vocabulary import GgufVocabulary
from reference import LlamaCpp

PROMPT = "def read_lines(filename):\n"
N_TOKENS = 24
SURE = 0.5
"""Kernels round differently: where the best logit led by less, another text is no mistake."""


def request(**changes: object) -> BaselineRequest:
    pair = embedded_pair()
    whole = BaselineRequest(pair.target, pair.draft, PROMPT, N_TOKENS, 256, 1, lambda: 0)
    return replace(whole, **changes)


@pytest.fixture(scope="module")
def mapped() -> BaselineRun:
    return baselines.run("mmap", request())


@pytest.fixture(scope="module")
def sure_tokens(mapped: BaselineRun) -> list[int]:
    """The tokens of llama.cpp decoding one by one, up to the first near tie."""
    from edgespec_runtimes.gguf.llama import loading

    with closing(loading.load_sizes_only(embedded_pair().target)) as model:
        prompt = GgufVocabulary(model).encode(PROMPT)
    with LlamaCpp(embedded_pair().target) as llama:
        reference = llama.greedy(prompt, N_TOKENS)
    steps = takewhile(lambda step: reference.margin(step) > SURE, range(len(reference.tokens)))
    return [reference.tokens[step] for step in steps]


def test_the_runtime_offers_them():
    assert runtime.baselines.LIBRARY.startswith("llama-cpp-python ")


@pytest.mark.parametrize("name", ["mmap", "resident", "llama-linear-3"])
def test_the_text_is_llama_cpps(name: str, sure_tokens: list[int]):
    assert sure_tokens
    assert list(baselines.run(name, request()).tokens[: len(sure_tokens)]) == sure_tokens


@pytest.mark.parametrize("name", ["mmap", "llama-linear-3"])
def test_a_text_is_what_is_picked(name: str):
    """Each token once, with the text before it; a guess counts only if it is what is picked."""
    seen: list[int] = []

    def second(logits: np.ndarray, tokens: Sequence[int]) -> int:
        seen.append(len(tokens))
        return int(np.argsort(logits)[-2 if len(tokens) % 3 == 0 else -1])

    run = baselines.run(name, request(pick=second))
    begin = run.n_prompt_tokens
    assert seen[: len(run.tokens)] == list(range(begin, begin + len(run.tokens)))
    assert run.tokens == baselines.run("mmap", request(pick=second)).tokens
    assert run.tokens != baselines.run("mmap", request()).tokens


def test_decoding_plainly_is_a_token_a_pass(mapped: BaselineRun):
    assert len(mapped.rounds) == len(mapped.tokens) == N_TOKENS
    assert all((cost.n_tokens, cost.verified) == (1, 0) for cost in mapped.rounds)


def test_speculation_is_counted_round_by_round():
    run = baselines.run("llama-linear-3", request())
    assert sum(cost.n_tokens for cost in run.rounds) == len(run.tokens)
    assert all(cost.accepted <= cost.verified <= 3 for cost in run.rounds)
    assert sum(cost.accepted for cost in run.rounds) > 0
    assert all(cost.wall_s >= cost.draft_s + cost.pass_s for cost in run.rounds)


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("llama-linear-3", {"draft": None}, UsageError),
        ("mmap", {"ctx_size": 8}, UsageError),
        ("mmap", {"model": Path("/nonexistent.gguf")}, ModelError),
    ],
)
def test_what_cannot_run_says_why(name, changes, error):
    with refuses(error):
        baselines.run(name, request(**changes))
