"""What a GPU's library takes of the process's memory: measured once, in a process of its own.

Owns the question; the process that plans must not have that library in memory before the plan has
room for it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec.concurrency.endings import crash_name
from edgespec.memory.process import in_steps
from edgespec_runtimes.gguf.llama import abi, ggml, gpu, kept_answers, loading, own_process

TIMEOUT_S = 60.0
"""A driver may take seconds to start, and a library that compiles its kernels longer."""
_TRIAL = "edgespec_runtimes.gguf.llama.gpu_library_trial"
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of the process's memory, or why they are not known."""

    nbytes: int | None
    why: str = ""

    @property
    def note(self) -> str | None:
        """A sentence for people where the plan has to do without."""
        if self.nbytes is not None:
            return None
        return (
            "what the GPU's library takes of the process's memory could not be measured "
            f"({self.why}): the plan has no room for it, so leave some of the budget free"
        )


def taken() -> Taken:
    """What is remembered of these GPUs with this library, or what is measured now."""
    try:
        place = kept_answers.place(_key())
    except OSError as error:
        return Taken(None, str(error))
    kept = kept_answers.read(place) if place else None
    if isinstance(kept, int) and kept >= 0:
        return Taken(kept)
    if missing := own_process.missing_interpreter():
        return Taken(None, missing)
    measured = measure([sys.executable, "-m", _TRIAL])
    if place and measured.nbytes is not None:
        kept_answers.write(place, measured.nbytes)
    return measured


def measure(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> Taken:
    """Run `gpu_library_trial`, or what stands for it. Whatever happens, it is gone afterwards."""
    try:
        done = own_process.run(command, timeout_s)
    except own_process.NoAnswer as error:
        return Taken(None, str(error))
    if not done.stdout.isdigit():
        ended = crash_name(done.returncode) or f"exit code {done.returncode}"
        return Taken(None, f"it ended with {ended}")
    return Taken(in_steps(int(done.stdout)))


def _key() -> str:
    """Differs for another build, GPU or driver. Raises OSError."""
    folder = abi.library_file("ggml-base").parent
    files = kept_answers.state_of(sorted(path for path in folder.iterdir() if path.is_file()))
    known = [
        "GPU library",
        loading.version(),
        files,
        [ggml.device_name(device) for device in gpu.find_all()],
        _drivers(),
        platform.release(),
    ]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:24]


def _drivers() -> list[str]:
    """What says which they are, where the system does."""
    found = []
    for path in _DRIVERS:
        with suppress(OSError):
            found.append(path.read_text(encoding="utf-8", errors="replace"))
    return found
