"""Answers about llama.cpp's library that processes of their own gave, kept in the cache folder.

Knows neither what was asked nor who asks.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgespec.files import cache_folder


def place(key: str) -> Path | None:
    """Where an answer is kept; None for a user without a home."""
    try:
        return cache_folder.folder() / "llama.cpp" / f"{key}.json"
    except RuntimeError:
        return None


def read(path: Path) -> Any:
    """None for what is not there or damaged."""
    with suppress(OSError, ValueError):
        return json.loads(path.read_bytes())
    return None


def write(path: Path, answer: Any) -> None:
    """Whole or not at all; where the folder cannot be written, the next process asks again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                json.dump(answer, file)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)


def state_of(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Differs for another build. Raises OSError."""
    stats = [(path, path.stat()) for path in files]
    return [(path.name, stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def processor() -> Iterator[str]:
    """What tells processors apart: a cache folder may be shared by several machines."""
    yield platform.machine()
    yield os.environ.get("PROCESSOR_IDENTIFIER", "")
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        first = file.read(8192).split("\n\n")[0]
        telling = ("model name", "flags", "Features", "CPU implementer", "CPU part")
        yield from (line for line in first.splitlines() if line.startswith(telling))
