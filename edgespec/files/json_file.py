"""Small JSON files in the cache that keep measurements for later runs.

They can be measured again, so failures to read or write are ignored.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgespec.files.regular import read_regular
from edgespec.files.unfinished import quick_file, sweep
from edgespec.values import ModelInfo

MAX_BYTES = 1 << 20
_CHECKSUM, _CONTENT = "crc32", "content"


class JsonFile:
    """A JSON file that is replaced atomically; failures to read or write it are ignored."""

    def __init__(self, folder: Path, name: str, max_files: int | None = None) -> None:
        """The folder keeps the `max_files` most recently written files; None: all."""
        self.path = folder / f"{name}.json"
        self._max_files = max_files

    def read(self) -> Any:
        """The content, or None if the file is missing, damaged or cannot be read."""
        try:
            found = json.loads(read_regular(self.path, MAX_BYTES))
            content = found[_CONTENT]
            return content if found[_CHECKSUM] == _checksum(json.dumps(content)) else None
        except (OSError, ValueError, RecursionError, LookupError, TypeError):
            return None

    def write(self, content: object) -> None:
        """Replace the content, if the folder can be written."""
        inner = json.dumps(content)
        text = f'{{"{_CHECKSUM}": {_checksum(inner)}, "{_CONTENT}": {inner}}}'
        if len(text) > MAX_BYTES:
            return
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self.path.exists()
            with quick_file(self.path) as create, open(create(0), "wb", closefd=False) as file:
                file.write(text.encode())
            if is_new:
                sweep(self.path.parent)
                if self._max_files:
                    self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Delete the least recently written files beyond the limit.

        Another process may delete them at the same time.
        """
        written = []
        for path in self.path.parent.iterdir():
            with suppress(OSError):
                written.append((path.stat().st_mtime, path))
        written.sort(reverse=True)
        for _, path in written[self._max_files :]:
            with suppress(OSError):
                path.unlink()


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode())


def pair_digest(target: ModelInfo, draft: ModelInfo | None = None) -> str:
    """Digest of the metadata of a pair, or of a target alone; reads no weights."""
    metadata = [
        (info.name, info.architecture, info.n_vocab, info.n_layers, info.size_bytes)
        for info in (target, draft)
        if info is not None
    ]
    return hashlib.sha256(repr(metadata).encode()).hexdigest()[:24]
