"""The GPUs that llama.cpp would put layers on, and the process memory that their library takes.

That memory is measured once, by a trial in a process of its own: a process that plans must not
have the library in memory before the plan has room for it. Knows no models.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec.memory.process import round_up_to_step
from edgespec_runtimes.gguf.llama import abi, ggml, loading, trial_process

TIMEOUT_S = 60.0
"""A driver may take seconds to start, and a library that compiles its kernels longer."""
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


@dataclass(frozen=True, slots=True)
class LibraryMemory:
    """Bytes that a GPU's library takes of the process's memory, or why they are not known."""

    nbytes: int | None
    why: str = ""

    @property
    def note(self) -> str | None:
        """A sentence for people if the bytes are not known."""
        if self.nbytes is not None:
            return None
        return (
            "what the GPU's library takes of the process's memory could not be measured "
            f"({self.why}): the plan has no room for it, so leave some of the budget free"
        )


def find() -> int | None:
    """The first GPU's address; None without one."""
    return next(iter(find_all()), None)


def find_all() -> list[int]:
    """Addresses of the GPUs that share the layers; none of those of other machines."""
    loading.start()
    return ggml.gpus()


def has_own_memory(device: int) -> bool:
    """True if the device does not share the process's memory, as Apple's devices do."""
    return sys.platform != "darwin" and ggml.kind_of(device) != ggml.INTEGRATED_GPU


def library_memory() -> LibraryMemory:
    """The cached measurement for these GPUs and this library, or a new one."""
    try:
        cache = trial_process.cached(_key())
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
    """Run the trial or a stand-in. The process is gone afterwards, whatever happens."""
    try:
        done = trial_process.run(command, timeout_s)
    except trial_process.NoAnswer as error:
        return LibraryMemory(None, str(error))
    if not done.stdout.isdigit():
        return LibraryMemory(None, trial_process.how_it_ended(done.returncode))
    return LibraryMemory(round_up_to_step(int(done.stdout)))


def _key() -> str:
    """The cache key, which differs for another build, GPU or driver. Raises OSError."""
    folder = abi.library_file("ggml-base").parent
    files = trial_process.state_of(sorted(path for path in folder.iterdir() if path.is_file()))
    names = [ggml.device_name(device) for device in find_all()]
    return trial_process.cache_key("GPU library", loading.version(), files, names, _drivers())


def _drivers() -> list[str]:
    """The versions of the GPU drivers, as far as the system says them."""
    found = []
    for path in _DRIVERS:
        with suppress(OSError):
            found.append(path.read_text(encoding="utf-8", errors="replace"))
    return found
