"""Storage of learnt state between runs, in one small file per pair of models.

Knows the format of the files, but not the meaning of the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgespec.files.json_file import JsonFile, pair_digest
from edgespec.values import ModelInfo

Numbers = Mapping[str, float]
Learnt = Mapping[str, Numbers]
"""Learnt state by learner and key, the least recently used first."""

T = TypeVar("T")

MAX_ENTRIES = 64
"""Most entries per pair: the file is written after every text."""
MAX_FILES = 128
MAX_S = 1e4
"""Larger durations in stored state are ignored."""


def renewed(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
    """`before` updated by `now`, without the least recently used of more than `MAX_ENTRIES`."""
    others = {name: learnt for name, learnt in before.items() if name not in now}
    return dict([*others.items(), *now.items()][-MAX_ENTRIES:])


def within(numbers: Numbers, name: str, most: float, default: float = 0.0) -> float:
    """A number of stored state, limited to [0, `most`]."""
    return min(max(numbers.get(name, default), 0.0), most)


def kept(most: float, default: float = 0.0, size: int = 0) -> Any:
    """A field of a dataclass that is stored under its name, limited to [0, `most`]: a number, or an
    array of `size`."""
    if size:
        return field(default_factory=lambda: np.full(size, default), metadata={"most": most})
    return field(default=default, metadata={"most": most})


def state_of(*learners: Any) -> dict[str, float]:
    """The kept fields of dataclasses; those of an array by index, without zeros."""
    numbers: dict[str, float] = {}
    for learner, each in _kept_fields(learners):
        value = getattr(learner, each.name)
        if isinstance(value, np.ndarray):
            found = np.flatnonzero(value).tolist()
            numbers |= {f"{each.name} {n}": float(value[n]) for n in found}
        else:
            numbers[each.name] = float(value)
    return numbers


def recall(numbers: Numbers, *learners: Any) -> None:
    """Set the kept fields of dataclasses; numbers that are missing stay, arrays do not."""
    for learner, each in _kept_fields(learners):
        value, most = getattr(learner, each.name), each.metadata["most"]
        if isinstance(value, np.ndarray):
            names = (f"{each.name} {n}" for n in range(len(value)))
            setattr(learner, each.name, np.array([within(numbers, n, most) for n in names]))
        else:
            setattr(learner, each.name, within(numbers, each.name, most, value))


def _kept_fields(learners: Sequence[Any]) -> Iterator[tuple[Any, Field[Any]]]:
    """The fields declared with `kept`, each with its learner."""
    for learner in learners:
        yield from ((learner, each) for each in fields(learner) if "most" in each.metadata)


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
