"""Texts past what a draft remembers, with real models."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.session import prepared_models, session
from edgespec.settings.config import LoadSettings, SamplingParams
from edgespec.values import GenerationResult

ALWAYS = {"step_aside": False, "remember": False, "fallback": "full"}
"""Rules that do not depend on how fast passes are."""
MODELS = Path(__file__).parents[2] / "models"
WARM = SamplingParams(temperature=0.8, seed=5)


def written(
    model: Path, draft: Path | None, n_tokens: int, sampling: SamplingParams
) -> GenerationResult:
    settings = LoadSettings(model=model, draft=draft, ctx_size=256, memory_budget="8GiB", threads=1)
    with session.load(settings, EngineSettings(**ALWAYS)) as loaded:
        assert loaded.draft is None or loaded.draft.n_ctx == 64
        return loaded.generate("def mean(values):\n", sampling, n_tokens)


def pair(kind: str) -> tuple[Path, Path]:
    names = "q8_0.gguf" if kind == "gguf" else "onnx-fp16"
    return MODELS / f"edgespec-target-{names}", MODELS / f"edgespec-draft-{names}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sampling"), [("gguf", WARM), ("gguf", SamplingParams()), ("onnx", WARM)]
)
def test_a_draft_that_forgets_changes_no_token_past_its_context(
    kind: str, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_models, "DRAFT_CTX_SIZE", 64)
    target, draft = pair(kind)
    alone = written(target, None, 150, sampling)
    drafted = written(target, draft, 150, sampling)
    assert drafted.tokens == alone.tokens
    assert drafted.speculation.accepted > 20
