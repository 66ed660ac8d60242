"""Shared by tests of heads: requests for them, a text, and rules under which they always guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.engine.settings import EngineSettings
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf.options import GgufOptions
from port_calls import prefill
from port_models import model_request

PROMPT = (5, 9, 2, 130, 11, 7)
TEXT = (*PROMPT, 77, 201, 33, 8)
N_VALUES = 64
"""Values of a hidden state in `states_of`."""
LINE = EngineSettings(lookup=False, fallback="fixed", n_candidates=1, draft_max=4, step_aside=False)
"""It guesses in every round, whatever the clock says."""


def states_of(tokens: Sequence[int]) -> np.ndarray:
    """Hidden states of a target that does not exist: [tokens, 3, values]."""
    table = np.random.default_rng(3).standard_normal((297, 3, N_VALUES)).astype(np.float32)
    return table[list(tokens)]


def read(head: Any, text: Sequence[int], n_layers: int = 3) -> None:
    """Give a head a text with its features, from the beginning."""
    head.truncate(0)
    head.take_features(0, states_of(text)[:, :n_layers])
    prefill(head, text)


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
