"""Shares of tokens that chose a mixture's experts, kept between runs, a small file for each model.

They are a first guess of the next run and change no text, so failures here are no errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.regular import read_regular
from edgespec.files.unfinished import unfinished_file

MOST_FILES = 32
"""In the folder: a new one sends the one away that was not written for the longest time."""
MOST_BYTES = 1 << 20


class ExpertSharesFile:
    """The shares of one model, a byte for each expert, layer by layer. A file that cannot be read
    or written is as good as none."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.path = folder / f"{digest}.json"

    def recall(self) -> list[bytes]:
        """The shares kept last; empty if there are none."""
        try:
            content = json.loads(read_regular(self.path, MOST_BYTES))
            return [bytes.fromhex(layer) for layer in content["shares"]]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return []

    def keep(self, shares: Sequence[bytes]) -> None:
        """Keep them for the next run, if that is possible."""
        content = json.dumps({"shares": [layer.hex() for layer in shares]}).encode()
        if len(content) > MOST_BYTES:
            return
        with suppress(OSError, UsageError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished_file(self.path, alone=False) as file:
                file.write(content)
            files = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in files[:-MOST_FILES]:
                path.unlink(missing_ok=True)
