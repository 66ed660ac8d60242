"""Learnt state of a pair, kept between runs in a small file for each pair of models.

It knows the files and their format, not the meaning of the numbers. They are a first guess of the
next run and change no text, so failures here are no errors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from edgespec.files.regular import read_regular
from edgespec.values import ModelInfo

Numbers = Mapping[str, float]
Learnt = Mapping[str, Numbers]
"""Learnt state by learner and cache key (`draft@0.7` at temperature 0.7), last used last."""

T = TypeVar("T")

_MOST_BYTES = 1 << 20
MOST_PLACES = 64
"""Entries kept for a pair, since the file is read and written with every text."""
MOST_FILES = 128
"""In the folder: a new one sends the one away that was not written for the longest time."""


def renewed(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
    """`before` with what is known `now`; what was not used for the longest time may fall out."""
    others = {name: learnt for name, learnt in before.items() if name not in now}
    return dict([*others.items(), *now.items()][-MOST_PLACES:])


class Memory(Protocol):
    """Store of the state that an engine learns."""

    def recall(self) -> Learnt:
        """The state kept last; empty if there is none."""

    def keep(self, learnt: Learnt) -> None:
        """Keep this for the next run, if that is possible."""


class CalibrationFile:
    """Implements `Memory` in a folder. A file is replaced at once or not at all; a folder that
    cannot be written, or a file that cannot be read, is as good as none."""

    def __init__(self, folder: Path, target: ModelInfo, draft: ModelInfo | None) -> None:
        self._path = folder / f"{pair_digest(target, draft)}.json"

    def recall(self) -> Learnt:
        try:
            content = json.loads(read_regular(self._path, _MOST_BYTES))
            return {source: _numbers(learnt) for source, learnt in content.items()}
        except (OSError, ValueError, AttributeError, OverflowError, RecursionError):
            return {}

    def keep(self, learnt: Learnt) -> None:
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".")
            try:
                with os.fdopen(handle, "w") as file:
                    json.dump(learnt, file)
                is_new = not self._path.exists()
                Path(name).replace(self._path)
            except BaseException:
                with suppress(OSError):
                    Path(name).unlink()
                raise
            if is_new:
                _drop_oldest(self._path.parent)


def pair_digest(target: ModelInfo, draft: ModelInfo | None) -> str:
    """Names a pair by what its models say of themselves; no weights are read."""
    said = [
        (info.name, info.architecture, info.n_vocab, info.n_layers, info.size_bytes)
        for info in (target, draft)
        if info is not None
    ]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:24]


def _drop_oldest(folder: Path) -> None:
    """Another process may do the same at the same time: what is gone is gone."""
    written = []
    for path in folder.iterdir():
        with suppress(OSError):
            written.append((path.stat().st_mtime, path))
    written.sort(reverse=True)
    for _, path in written[MOST_FILES:]:
        with suppress(OSError):
            path.unlink()


def _numbers(content: Mapping[str, object]) -> dict[str, float]:
    """Raises ValueError for anything but finite numbers."""
    numbers = {}
    for name, value in content.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
        numbers[name] = float(value)
    return numbers
