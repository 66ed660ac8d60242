"""Storage of learnt state between runs, in one small file per pair of models.

Knows the format of the files, but not the meaning of the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from edgespec.files.json_file import JsonFile, pair_digest
from edgespec.values import ModelInfo

Numbers = Mapping[str, float]
Learnt = Mapping[str, Numbers]
"""Learnt state by learner and key, the least recently used first."""

T = TypeVar("T")

MAX_ENTRIES = 64
"""Most entries per pair: the file is written after every text."""
MAX_FILES = 128


def renewed(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
    """`before` updated by `now`, without the least recently used of more than `MAX_ENTRIES`."""
    others = {name: learnt for name, learnt in before.items() if name not in now}
    return dict([*others.items(), *now.items()][-MAX_ENTRIES:])


class StateStore:
    """The learnt state of a pair, in a file that its runs share."""

    def __init__(self, folder: Path, target: ModelInfo, draft: ModelInfo | None) -> None:
        self._file = JsonFile(folder, pair_digest(target, draft), MAX_FILES)

    def recall(self) -> Learnt:
        """The stored state; empty if there is none."""
        try:
            content = self._file.read() or {}
            return {source: _numbers(learnt) for source, learnt in content.items()}
        except (ValueError, AttributeError, OverflowError):
            return {}

    def keep(self, learnt: Learnt) -> None:
        """Store the state for the next run, if possible."""
        self._file.write(learnt)


def _numbers(content: Mapping[str, object]) -> dict[str, float]:
    """The numbers of one entry. Raises ValueError if one is not finite."""
    numbers = {}
    for name, value in content.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
        numbers[name] = float(value)
    return numbers
