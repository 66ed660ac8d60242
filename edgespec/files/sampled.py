"""A digest of large files by their sizes and samples; reads none whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from edgespec.files.regular import open_regular

HEAD_BYTES = 1 << 20
"""Bytes at the beginning that are read whole: the header, or the graph, of most models."""
N_SAMPLES, SAMPLE_BYTES = 256, 4096
"""Samples spread evenly over the rest, and bytes of each: models of one shape differ in their
weights alone."""


def sampled_digest(files: Iterable[Path], with_times: bool = True) -> str:
    """Hexadecimal digest of the files' sizes and samples, and of their times of change unless
    copies are compared; `cp -p` keeps them. Bytes between the samples are covered by the times
    alone. Raises OSError."""
    digest = hashlib.sha256()
    for path in files:
        with open_regular(path, buffering=0) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            digest.update(b"%d:" % size)
            if with_times:
                digest.update(b"%d:" % status.st_mtime_ns)
            digest.update(file.read(HEAD_BYTES))
            step = max(SAMPLE_BYTES, (size - HEAD_BYTES) // N_SAMPLES)
            for offset in range(HEAD_BYTES, size, step):
                file.seek(offset)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
