"""Identifies the model files and the processor that saved state depends on.

Reads no model whole: bytes between the samples are covered by the time of the last change alone, so
a change is not noticed if that time is set back.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from pathlib import Path

from edgespec.files.sampled import sampled_digest

_DECIDING = re.compile("amx|asimd|avx|bf16|f16c|fma|i8mm|sme(?!p)|ssse3|sve")
"""Beginnings of the names, in Linux, of instruction sets that libraries choose kernels by, so that
results round differently."""


def fingerprint(files: Iterable[Path]) -> str:
    """Hexadecimal digest of the files' sizes, times of change and samples; a copy has the same one
    if it keeps the time of change, as `cp -p` does. Raises OSError."""
    return sampled_digest(files)


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
