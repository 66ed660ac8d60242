"""Findings of `edgespec doctor` about a machine, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Topic = Literal["processor", "memory", "storage", "gpu", "libraries", "cache"]
Level = Literal["fine", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact, what it means, and what to do about it."""

    topic: Topic
    what: str
    """The subject: `cores`, `llama-cpp-python`."""
    says: str
    level: Level = "fine"
    advice: str = ""
    """The next step for the user, or ""."""
