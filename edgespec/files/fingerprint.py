"""Tells a model's files from others, and from what they were before they were changed.

Reads no model whole: bytes between the samples are covered by the time of the last change alone, so
that whoever changes some and sets that time back is not noticed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from edgespec.files.regular import open_regular

HEAD_BYTES = 1 << 20
"""Read whole: the header, or the graph, of most models."""
N_SAMPLES, SAMPLE_BYTES = 256, 4096
"""Spread evenly over the rest: models of one shape differ in their weights alone."""


def fingerprint(files: Iterable[Path]) -> str:
    """The same for the same files as long as nobody writes them; a copy has to keep the time of
    change, as `cp -p` does. Raises OSError."""
    digest = hashlib.sha256()
    for path in files:
        with open_regular(path, buffering=0) as file:
            told = os.fstat(file.fileno())
            size = told.st_size
            digest.update(b"%d:%d:" % (size, told.st_mtime_ns))
            digest.update(file.read(HEAD_BYTES))
            step = max(SAMPLE_BYTES, (size - HEAD_BYTES) // N_SAMPLES)
            for offset in range(HEAD_BYTES, size, step):
                file.seek(offset)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
