"""Shared by tests of heads: requests for them, a text, and rules under which they always guess."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import edgespec
from edgespec.engine.settings import EngineSettings
from edgespec.rules.sampling import SamplingParams
from edgespec.runtimes import ModelRequest
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.gguf.options import GgufOptions

PROMPT = (5, 9, 2, 130, 11, 7)
LINE = EngineSettings(lookup=False, fallback="fixed", n_candidates=1, draft_max=4, step_aside=False)
"""It guesses in every round, whatever the clock says."""


def head_request(
    path: Path, owner: str = "draft", target: Path | None = None, **changes: Any
) -> ModelRequest:
    request = ModelRequest(
        path=path,
        owner=owner,
        ctx_size=64,
        max_nodes=9,
        max_branches=5,
        n_threads=1,
        options=GgufOptions(flash_attn="on"),
        target=target,
    )
    return replace(request, **changes)


def check_saved_state(settings: LoadSettings, folder: Path, n_tokens: int) -> None:
    """A session that loads the state of another guesses on, and writes the same text."""
    sampling, kept = SamplingParams(temperature=0), folder / "kept.state"
    with edgespec.load(settings, LINE) as session:
        first = session.generate(PROMPT, sampling, n_tokens)
        assert first.speculation.accepted
        session.save_state(kept)
        text = [*PROMPT, *first.tokens]
        expected = session.generate(text, sampling, n_tokens)
    with edgespec.load(settings, LINE) as session:
        session.load_state(kept)
        result = session.generate(text, sampling, n_tokens)
    assert result.tokens == expected.tokens
    assert result.reused_tokens > 0
    assert result.speculation.accepted > 0 and not result.notes
