"""A separate program that loads sessions and measures how much memory onnxruntime takes for them.

It may be killed in place of its parent. Reads graphs from stdin, and writes JSON to stdout.
`prepare/measuring.py` starts it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import BinaryIO

from edgespec.memory.cgroups import table
from edgespec.memory.heap import trim_heap
from edgespec_runtimes.onnx.ort.devices import CPU
from edgespec_runtimes.onnx.ort.sessions import OrtSession

_STATUS = Path("/proc/self/status")
_FORGET_PEAK = "5"
"""Request to /proc/self/clear_refs to begin a new peak."""


def main(stdin: BinaryIO) -> int:
    """Measure each graph of the request; the first is loaded twice, as it loads libraries."""
    request = json.loads(stdin.readline())
    graphs = [stdin.read(length) for length in request["lengths"]]
    folder, n_threads = Path(request["folder"]), request["n_threads"]
    if graphs:
        measured(graphs[0], n_threads, folder)
    sys.stdout.write(json.dumps([measured(graph, n_threads, folder) for graph in graphs]))
    return 0


def measured(graph: bytes, n_threads: int, folder: Path) -> tuple[int, int, int]:
    """Bytes by which a session of `graph` makes this process grow: afterwards, of which private,
    and at the peak of its creation."""
    trim_heap()
    Path("/proc/self/clear_refs").write_text(_FORGET_PEAK, encoding="ascii")
    before = table(_STATUS)
    session = OrtSession(graph, "the model", n_threads, CPU.providers(0), folder)
    peak = table(_STATUS)["VmHWM"] - before["VmRSS"]
    trim_heap()
    after = table(_STATUS)
    session.close()
    kept, private = (max(0, after[what] - before[what]) for what in ("VmRSS", "RssAnon"))
    return kept, private, max(kept, peak)


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer))
