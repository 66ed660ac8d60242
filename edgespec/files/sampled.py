"""Digests of large files from their sizes and samples, without reading them whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from edgespec.files.regular import open_regular

HEAD_BYTES = 1 << 20
"""Bytes at the beginning that are digested completely: the header or graph of most models."""
N_SAMPLES, SAMPLE_BYTES = 256, 4096
"""Number of samples spread evenly over the rest, and bytes of each: models of the same architecture
differ only in their weights."""


def sampled_digest(files: Iterable[Path], with_times: bool = True) -> str:
    """Hexadecimal digest of the sizes, samples and modification times of `files`.

    Changes between the samples are detected only by modification times, which `cp -p` keeps. Leave
    them out to compare copies. Raises OSError.
    """
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
