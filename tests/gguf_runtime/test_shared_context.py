"""Several texts share one context of a real model: they wait, or are set back, and end right."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_gguf_types import quantised

import edgespec
from edgespec.engine import text as engine_text
from edgespec.engine.slot import Slot
from edgespec.models.embedded import embedded_pair
from session_cases import at_once

N_CTX = 256


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embedded", "drafted", "Q4_K_M"])
def test_texts_that_fill_one_context_are_those_that_they_are_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_text, "STEP", 16)
    files, n_set_back = embedded_pair(), list[int]()
    forget = Slot.forget

    def counted(self: Slot) -> None:
        n_set_back.append(0 if self.is_free else len(self.committed))
        forget(self)

    monkeypatch.setattr(Slot, "forget", counted)
    model = files.target if kind != "Q4_K_M" else quantised(kind, tmp_path, files.target)
    load = edgespec.LoadSettings(model=model, memory_budget="2GiB", ctx_size=N_CTX, threads=1)
    rules = edgespec.EngineSettings(remember=False, step_aside=False)
    if kind == "drafted":
        load = load.model_copy(update={"draft": files.draft})
    drawn = edgespec.SamplingParams(temperature=0.9, seed=5)
    prompts = ["the tea " * 16, "def add(a, b):", "the rain in the inn " * 9, "class Tree:\n" * 9]
    prompts += ["def add(a", "the tea " * 21]
    with edgespec.load(load, rules) as session:
        expected = [session.generate(prompt, drawn, max_tokens=90).tokens for prompt in prompts]
        n_tokens = [len(session.encode(prompt)) for prompt in prompts]
    load = load.model_copy(update={"n_parallel": 4})
    least = edgespec.plan(load, rules).smallest_bytes - (5 << 20)  # other processes may take more
    load = load.model_copy(update={"memory_budget": least})
    with edgespec.load(load, rules) as session:
        assert session.target.n_cells == N_CTX < sum(n_tokens)
        for _ in range(2):
            results = at_once(session, prompts, sampling=drawn, max_tokens=90)
            assert [result.tokens for result in results] == expected
    assert max(n_set_back) > 0, "a text was set back"
