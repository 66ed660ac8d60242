"""Shared by tests of heads: requests for them, a text, and rules under which they always guess."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.engine.settings import EngineSettings
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf.options import GgufOptions
from port_models import model_request

PROMPT = (5, 9, 2, 130, 11, 7)
LINE = EngineSettings(lookup=False, fallback="fixed", n_candidates=1, draft_max=4, step_aside=False)
"""It guesses in every round, whatever the clock says."""


def head_request(
    path: Path, owner: str = "draft", target: Path | None = None, **changes: Any
) -> ModelRequest:
    request = model_request(
        path,
        owner=owner,
        ctx_size=64,
        max_branches=5,
        options=GgufOptions(flash_attn="on"),
        target=target,
    )
    return replace(request, **changes)
