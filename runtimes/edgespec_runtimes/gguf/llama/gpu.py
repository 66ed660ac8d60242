"""Finds the GPUs that llama.cpp can use, and measures the process memory of their library.

The memory is measured once, in a separate process: a planning process must not load the library
before the plan has room for it. Knows no models.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.concurrency.exit_codes import exit_reason
from edgespec.files import cache_folder
from edgespec.files.json_file import JsonFile
from edgespec.memory.process import round_up_to_step
from edgespec_runtimes.gguf.llama import abi, ggml, loading, trial_process

TIMEOUT_S = 60.0
"""Time limit of the measurement: drivers start slowly, and a library may compile its kernels."""
MAX_RESULTS = 64
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


@dataclass(frozen=True, slots=True)
class LibraryMemory:
    """Process memory of a GPU's library in bytes, or why it is unknown."""

    nbytes: int | None
    why: str = ""

    @property
    def note(self) -> str | None:
        """A note for the user if the memory is unknown."""
        if self.nbytes is not None:
            return None
        return (
            "what the GPU's library takes of the process's memory could not be measured "
            f"({self.why}): the plan has no room for it, so leave some of the budget free"
        )


def find() -> int | None:
    """Address of the first GPU; None without one."""
    return next(iter(find_all()), None)


def find_all() -> list[int]:
    """Addresses of the local GPUs that can get layers."""
    loading.start()
    return ggml.gpus()


def rounds_by_rows_alone() -> bool:
    """True if passes of equally many rows were seen to round alike on such GPUs: on CUDA."""
    return all(ggml.backend_of(device) == "CUDA" for device in find_all())


def has_own_memory(device: int) -> bool:
    """False if the device shares the process's memory, as Apple's GPUs do."""
    return sys.platform != "darwin" and ggml.kind_of(device) != ggml.INTEGRATED_GPU


def library_memory() -> LibraryMemory:
    """The cached measurement for these GPUs and this library, or a new one."""
    try:
        cache = _cache()
        known = cache.read()
        if isinstance(known, int) and known >= 0:
            return LibraryMemory(known)
        measured = measure(trial_process.command("gpu"))
    except (OSError, trial_process.NoAnswer) as error:
        return LibraryMemory(None, str(error))
    if measured.nbytes is not None:
        cache.write(measured.nbytes)
    return measured


def measure(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> LibraryMemory:
    """Run the measurement; its process has always ended afterwards."""
    try:
        done = trial_process.run(command, timeout_s)
    except trial_process.NoAnswer as error:
        return LibraryMemory(None, str(error))
    if not done.stdout.isdigit():
        return LibraryMemory(None, exit_reason(done.returncode))
    return LibraryMemory(round_up_to_step(int(done.stdout)))


def _cache() -> JsonFile:
    """The file that caches the result for this build, GPU and driver. Raises OSError."""
    folder = abi.library_file("ggml-base").parent
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.is_file()]
    states = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
    names = [ggml.device_name(device) for device in find_all()]
    drivers = [path.read_bytes() for path in _DRIVERS if path.exists()]
    known = repr((loading.version(), states, names, drivers, platform.release()))
    key = hashlib.sha256(known.encode()).hexdigest()[:24]
    return JsonFile(cache_folder.folder() / "llama.cpp", key, MAX_RESULTS)
