"""Small JSON files of what earlier runs found out, in folders of the cache.

The next run can find it out again, so failures here are no errors.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgespec.files.regular import read_regular
from edgespec.values import ModelInfo

MAX_BYTES = 1 << 20


class JsonFile:
    """A JSON file, replaced at once or not at all; a folder that cannot be written, or a file that
    cannot be read, is as good as none."""

    def __init__(self, folder: Path, name: str, max_files: int | None = None) -> None:
        """The folder holds `max_files`, if they are limited: a new one sends the one away that was
        not written for the longest time."""
        self.path = folder / f"{name}.json"
        self._max_files = max_files

    def read(self) -> Any:
        """The content written last; None if there is none."""
        try:
            return json.loads(read_regular(self.path, MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return None

    def write(self, content: object) -> None:
        """Keep the content for the next run, if that is possible."""
        text = json.dumps(content)
        if len(text) > MAX_BYTES:
            return
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".")
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(text)
                is_new = not self.path.exists()
                Path(name).replace(self.path)
            except BaseException:
                with suppress(OSError):
                    Path(name).unlink()
                raise
            if is_new and self._max_files:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Another process may do the same at the same time: what is gone is gone."""
        written = []
        for path in self.path.parent.iterdir():
            with suppress(OSError):
                written.append((path.stat().st_mtime, path))
        written.sort(reverse=True)
        for _, path in written[self._max_files :]:
            with suppress(OSError):
                path.unlink()


def pair_digest(target: ModelInfo, draft: ModelInfo | None = None) -> str:
    """Names a pair, or a target alone, by what its models say of themselves; no weights are
    read."""
    said = [
        (info.name, info.architecture, info.n_vocab, info.n_layers, info.size_bytes)
        for info in (target, draft)
        if info is not None
    ]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:24]
