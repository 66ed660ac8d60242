"""How answers of a conversation are sampled where nobody says it: as the model's makers recommend.

What their files leave open is llama.cpp's default. Small models repeat themselves for ever when
they take the best token always.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from edgespec.errors import UsageError
from edgespec.settings.config import SamplingParams

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
)
"""llama.cpp's own."""


def chat_sampling(recommended: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names of `SamplingParams`; what a model's files say wrongly is left out."""
    told = dict(recommended)
    if isinstance(top_k := told.get("top_k"), int):
        told["top_k"] = max(top_k, 0)  # many write -1 for all tokens
    return dict(DEFAULTS) | {name: told[name] for name in told if _is_valid(name, told[name])}


def _is_valid(name: str, value: Any) -> bool:
    try:
        SamplingParams.model_validate({name: value})
    except UsageError:
        return False
    return True
