"""Identifies the model files and the processor that saved state depends on.

Reads no model whole: bytes between the samples are covered by the time of the last change alone, so
a change is not noticed if that time is set back.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from edgespec.files.regular import open_regular

HEAD_BYTES = 1 << 20
"""Bytes at the beginning that are read whole: the header, or the graph, of most models."""
N_SAMPLES, SAMPLE_BYTES = 256, 4096
"""Samples spread evenly over the rest, and bytes of each: models of one shape differ in their
weights alone."""
_DECIDING = re.compile("amx|asimd|avx|bf16|f16c|fma|i8mm|sme(?!p)|ssse3|sve")
"""Beginnings of the names, in Linux, of instruction sets that libraries choose kernels by, so that
results round differently."""


def fingerprint(files: Iterable[Path]) -> str:
    """Hexadecimal digest of the files' sizes, times of change and samples; a copy has the same one
    if it keeps the time of change, as `cp -p` does. Raises OSError."""
    digest = hashlib.sha256()
    for path in files:
        with open_regular(path, buffering=0) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            digest.update(b"%d:%d:" % (size, status.st_mtime_ns))
            digest.update(file.read(HEAD_BYTES))
            step = max(SAMPLE_BYTES, (size - HEAD_BYTES) // N_SAMPLES)
            for offset in range(HEAD_BYTES, size, step):
                file.seek(offset)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def instruction_sets(root: Path = Path("/")) -> str:
    """Names of the processor's instruction sets that decide how libraries round, in a line; the
    processor's kind where the system does not list them."""
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    listed = (
        line.split(":", 1) for line in lines if line.lower().startswith(("flags", "features"))
    )
    for _, names in listed:
        return " ".join(sorted(name for name in names.split() if _DECIDING.match(name)))
    return platform.machine()
