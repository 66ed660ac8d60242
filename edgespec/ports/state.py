"""Origin of saved keys and values: all that they depend on besides the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """Everything besides the tokens that KV depends on; a state fits models of equal origin."""

    files: Sequence[Path]
    """The model's weight files."""
    settings: Mapping[str, str]
    """Settings by their names in messages: the library's version, the context size, the cache
    types."""
