"""What of a processor decides how libraries round: instruction sets that they choose kernels by.

Reads what the system says; knows no library.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

_DECIDING = re.compile("amx|asimd|avx|bf16|f16c|fma|i8mm|sme(?!p)|ssse3|sve")
"""Beginnings of their names, as Linux spells them."""


def instruction_sets(root: Path = Path("/")) -> str:
    """Their names in a line; the processor's kind where the system does not say."""
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    told = (line.split(":", 1) for line in lines if line.lower().startswith(("flags", "features")))
    for _, names in told:
        return " ".join(sorted(name for name in names.split() if _DECIDING.match(name)))
    return platform.machine()
