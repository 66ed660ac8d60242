"""Learnt state of a pair, kept between runs in a small file for each pair of models.

It knows the format of the files, not the meaning of the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from edgespec.files.json_file import JsonFile, pair_digest
from edgespec.values import ModelInfo

Numbers = Mapping[str, float]
Learnt = Mapping[str, Numbers]
"""Learnt state by learner and cache key (`draft@0.7` at temperature 0.7), last used last."""

T = TypeVar("T")

MAX_ENTRIES = 64
"""Entries kept for a pair, since the file is read and written with every text."""
MAX_FILES = 128


def renewed(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
    """`before` with what is known `now`; what was not used for the longest time may fall out."""
    others = {name: learnt for name, learnt in before.items() if name not in now}
    return dict([*others.items(), *now.items()][-MAX_ENTRIES:])


class Memory(Protocol):
    """Store of the state that an engine learns."""

    def recall(self) -> Learnt:
        """The state kept last; empty if there is none."""

    def keep(self, learnt: Learnt) -> None:
        """Keep this for the next run, if that is possible."""


class CalibrationFile:
    """Implements `Memory` in a folder."""

    def __init__(self, folder: Path, target: ModelInfo, draft: ModelInfo | None) -> None:
        self._file = JsonFile(folder, pair_digest(target, draft), MAX_FILES)

    def recall(self) -> Learnt:
        try:
            content = self._file.read() or {}
            return {source: _numbers(learnt) for source, learnt in content.items()}
        except (ValueError, AttributeError, OverflowError):
            return {}

    def keep(self, learnt: Learnt) -> None:
        self._file.write(learnt)


def _numbers(content: Mapping[str, object]) -> dict[str, float]:
    """Raises ValueError for anything but finite numbers."""
    numbers = {}
    for name, value in content.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
        numbers[name] = float(value)
    return numbers
