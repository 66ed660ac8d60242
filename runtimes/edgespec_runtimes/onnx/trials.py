"""A separate program that loads sessions and measures how much memory onnxruntime takes for them,
and checks whether constants can be exchanged between pieces.

It may be killed in place of its parent. Reads graphs from stdin, and writes JSON to stdout.
`prepare/measuring.py` starts it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from edgespec.concurrency.owning import Closeable
from edgespec.errors import EdgespecError
from edgespec.files.unfinished import scratch_folder
from edgespec.memory.cgroups import table
from edgespec.memory.heap import trim_heap
from edgespec_runtimes.onnx.ort.devices import CPU
from edgespec_runtimes.onnx.ort.sessions import OrtSession
from edgespec_runtimes.onnx.weights.exchange import ExchangedSession, save
from edgespec_runtimes.onnx.weights.exchange_check import exchanged_layout

_STATUS = Path("/proc/self/status")
_SMAPS = Path("/proc/self/smaps")
_FORGET_PEAK = "5"
"""Request to /proc/self/clear_refs to begin a new peak."""


def main(stdin: BinaryIO) -> int:
    """Measure each graph of the request; the first is loaded twice, as it loads libraries. The last
    that is no pair joins several pieces, which may be impossible."""
    if sys.platform == "win32":
        return 1  # no trial is made there
    import resource

    request = json.loads(stdin.readline())
    resource.setrlimit(resource.RLIMIT_CPU, (request["processor_s"],) * 2)
    graphs = [stdin.read(length) for length in request["lengths"]]
    folder, n_threads = Path(request["folder"]), request["n_threads"]
    n_pairs = request["pairs"]
    single, paired = graphs[: len(graphs) - 2 * n_pairs], graphs[len(graphs) - 2 * n_pairs :]
    measured_session(single[0], n_threads, folder)
    sizes: list[Any] = [measured_session(graph, n_threads, folder) for graph in single[:-1]]
    with suppress(EdgespecError):
        sizes.append(None)
        sizes[-1] = measured_session(single[-1], n_threads, folder)
    pairs = zip(paired[::2], paired[1::2], strict=True)
    scratch = Path(request["scratch"])
    exchanged = [measured_exchange(*pair, n_threads, folder, scratch) for pair in pairs]
    sys.stdout.write(json.dumps({"sizes": sizes, "exchanged": exchanged}))
    return 0


def measured_session(graph: bytes, n_threads: int, folder: Path) -> tuple[int, int, int]:
    """Bytes by which a session of `graph` makes this process grow."""
    providers = CPU.providers(0)
    return measured(lambda: OrtSession(graph, "the model", n_threads, providers, folder), folder)


def measured_exchange(
    first: bytes, second: bytes, n_threads: int, folder: Path, scratch: Path
) -> dict[str, Any] | None:
    """Layout and sizes of a session of a piece whose constants are exchanged; None if they cannot
    be."""
    with suppress(EdgespecError, OSError), scratch_folder(scratch) as into:
        layout = exchanged_layout(first, second, folder, n_threads, into)
        saving = measured(lambda: save(first, folder, n_threads, into), into)
        piece = save(second, folder, n_threads, into)
        record = piece.record(layout)
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(record))

        def exchanged() -> ExchangedSession:
            session = ExchangedSession(piece, layout, n_threads)
            session.take(address)
            return session

        kept, private, peak = measured(exchanged, into)
        constants = [[one.name, one.form, one.nbytes] for one in layout.constants]
        return {"constants": constants, "size": [kept, private, max(peak, saving[2])]}
    return None


def measured(make: Callable[[], object], folder: Path) -> tuple[int, int, int]:
    """Bytes by which this process grows: afterwards, of which private, and at the peak.

    Counts what is mapped of files below `folder` as if it were read, and no pages of libraries,
    which the process's own row of a plan has.
    """
    trim_heap()
    Path("/proc/self/clear_refs").write_text(_FORGET_PEAK, encoding="ascii")
    before = table(_STATUS)
    made = make()
    peak = table(_STATUS)["VmHWM"] - before["VmRSS"]
    trim_heap()
    after, (mapped, read) = table(_STATUS), _mapped_bytes(folder)
    if isinstance(made, Closeable):
        made.close()
    grown, private = (max(0, after[what] - before[what]) for what in ("VmRSS", "RssAnon"))
    libraries = max(0, after["RssFile"] - before["RssFile"] - read)
    kept = grown - libraries + mapped - read
    return kept, private, max(kept, peak - libraries + mapped - read)


def _mapped_bytes(folder: Path) -> tuple[int, int]:
    """Bytes of files below `folder` that are mapped, and of which in memory: the first run reads
    what creating a session does not."""
    below, mapped, read = f" {folder}/", 0, 0
    is_below = False
    for line in _SMAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        key, _, value = line.partition(":")
        if "-" in key:  # a range of addresses, and at the end its file
            is_below = below in line
        elif is_below and key == "Size":
            mapped += _bytes(value)
        elif is_below and key == "Rss":
            read += _bytes(value)
    return mapped, read


def _bytes(value: str) -> int:
    return int(value.split(maxsplit=1)[0]) << 10


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer))
