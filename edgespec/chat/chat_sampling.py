"""Default sampling settings of conversations: the model's recommendation, then llama.cpp's.

With greedy sampling, small models repeat themselves endlessly.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from edgespec.errors import UsageError
from edgespec.settings.config import SamplingParams

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
)
"""Defaults of llama.cpp."""


def chat_sampling(recommended: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names of `SamplingParams`; invalid recommendations are left out."""
    settings = dict(recommended)
    if isinstance(top_k := settings.get("top_k"), int):
        settings["top_k"] = max(top_k, 0)  # many models use -1 for all tokens
    valid = dict(DEFAULTS)
    for name, value in settings.items():
        with suppress(UsageError):
            SamplingParams.model_validate({name: value})
            valid[name] = value
    return valid
