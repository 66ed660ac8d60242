"""Examines the machine: processor, memory, storage, libraries, GPUs, the cache folder.

Reads system information and asks the installed runtimes; opens no model.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from edgespec import registry
from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.files.unfinished import scratch_folder
from edgespec.memory import process
from edgespec.paging import disk_speed
from edgespec.paging.reader import READ_BYTES
from edgespec.registry import Finding
from edgespec.settings.units import format_size

INSTRUCTION_SETS = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8",
    "asimd", "asimddp", "i8mm", "sve", "sve2",
)  # fmt: skip
"""Instruction sets for which llama.cpp or onnxruntime have kernels, by their names in Linux."""
SLOW_DISK_BYTES_PER_S = 200e6
SAMPLE_BYTES = 64 << 20


def examine(model: Path | None = None) -> Iterator[Finding]:
    """Yield findings about this machine and the disk of `model`; a failed check is a finding."""
    yield from _processor()
    yield from _memory()
    for folder, path in _disks(model):
        yield _disk(folder, path)
    yield from _cache()
    yield from _libraries()


def _processor() -> Iterator[Finding]:
    model, known = process.processor()
    found = [name for name in INSTRUCTION_SETS if name in known]
    cores = process.usable_cores()
    logical = os.cpu_count() or 1
    says = f"{model}: {cores} of {logical} logical cores are used"
    yield Finding("processor", "cores", says)
    if found:
        yield Finding("processor", "instructions", ", ".join(found))
        if platform.machine() in {"x86_64", "AMD64"} and "avx2" not in found:
            yield Finding(
                "processor", "no AVX2", "quantised models compute several times slower", "note"
            )


def _memory() -> Iterator[Finding]:
    total, available = process.total_bytes(), process.available_bytes()
    says = f"{format_size(available)} free of {format_size(total)}"
    if sys.platform == "linux":
        says += ", cgroups taken into account"
    yield Finding("memory", "for this process", says)
    budget = process.auto_budget()
    yield Finding("memory", "--memory-budget auto", f"would be {format_size(budget)} now")


def _disks(model: Path | None) -> Iterator[tuple[Path, Path | None]]:
    """For each disk a folder on it and, if there is one, the model's file to read."""
    seen: set[int] = set()
    for path in filter(None, (model, cache_folder.folder())):
        file = path if path.is_file() else None
        folder = path.parent if file else path
        while not folder.is_dir() and folder != folder.parent:
            folder = folder.parent
        if (device := folder.stat().st_dev) not in seen:
            seen.add(device)
            yield folder, file


def _disk(folder: Path, file: Path | None) -> Finding:
    free = format_size(shutil.disk_usage(folder).free)
    try:
        speed = _speed(folder, file)
    except (EdgespecError, OSError) as error:
        reason = getattr(error, "strerror", error)
        return Finding("storage", str(folder), f"{free} free; not measured: {reason}", "note")
    if speed is None:
        return Finding("storage", str(folder), f"{free} free; too small a file to measure")
    says = f"{free} free; reads {speed / 1e6:,.0f} MB/s past the page cache"
    if speed < SLOW_DISK_BYTES_PER_S:
        return Finding(
            "storage", str(folder), says, "note",
            "models on a faster disk, NVMe rather than SD, decode faster in proportion",
        )  # fmt: skip
    return Finding("storage", str(folder), says)


def _speed(folder: Path, file: Path | None) -> float | None:
    """Bytes per second of reads from `file`, or from a temporary file."""
    if file is not None and file.stat().st_size >= 8 * READ_BYTES:
        return disk_speed.bytes_per_second(file)
    with scratch_folder(folder) as scratch, (scratch / "sample").open("wb") as sample:
        began = time.perf_counter()
        while sample.tell() < SAMPLE_BYTES and time.perf_counter() - began < 1.0:
            sample.write(os.urandom(1 << 20))
        sample.flush()
        os.fsync(sample.fileno())
        return disk_speed.bytes_per_second(Path(sample.name))


def _cache() -> Iterator[Finding]:
    folder = cache_folder.folder()
    if not folder.is_dir():
        yield Finding("cache", str(folder), "does not exist yet; it is created when needed")
        return
    taken = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    yield Finding("cache", str(folder), f"{format_size(taken)} in it")
    if not os.access(folder, os.W_OK):
        yield Finding(
            "cache", "not writable", "what cannot be kept slows every start", "problem",
            f"make {folder} writable, or name another with XDG_CACHE_HOME",
        )  # fmt: skip


def _libraries() -> Iterator[Finding]:
    for runtime in registry.installed():
        if isinstance(runtime, str):
            yield Finding("libraries", "missing", runtime, "note")
        else:
            yield from runtime.diagnose()
