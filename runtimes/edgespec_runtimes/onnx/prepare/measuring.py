"""Measures what onnxruntime takes for the weights of a decoder's pieces, in a process of its own.

onnxruntime packs, folds and converts constants by rules that differ between its versions and
processors. Pieces of equal structure are measured once, so a trial needs no more memory than the
largest piece. Results are kept per file, version and processor.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from edgespec.files import cache_folder
from edgespec.files.json_file import JsonFile
from edgespec.memory.process import processor
from edgespec_runtimes.onnx.files.source import Source
from edgespec_runtimes.onnx.graph.cutting import Cut, Piece
from edgespec_runtimes.onnx.weights.packing import with_constants

MEASURED_BYTES = 32 << 20
"""Size of weights below which measuring is not worth a process."""
TIMEOUT_S = 120.0
MAX_RESULTS = 64


@dataclass(frozen=True, slots=True)
class SessionSize:
    """Bytes of a session whose weights are constants."""

    kept_bytes: int
    private_bytes: int
    """Bytes within `kept_bytes` that are no pages of the model's file."""
    peak_bytes: int
    """Bytes at the peak of its creation."""

    @property
    def loading_bytes(self) -> int:
        return self.peak_bytes - self.kept_bytes


def session_sizes(cut: Cut, source: Source, n_threads: int) -> list[SessionSize]:
    """Size of a session of each piece; empty if it cannot be measured.

    It is measured on Linux, for models of some size. `cut` must not convert half precision in
    each run, which a session of all pieces does once.
    """
    if not _can_measure() or source.weight_bytes < MEASURED_BYTES:
        return []
    by_graph: dict[int, str] = {}
    chosen: dict[str, Piece] = {}
    for piece in cut.pieces:
        if piece.graph not in by_graph:
            by_graph[piece.graph] = _structure(cut, piece, source)
            chosen.setdefault(by_graph[piece.graph], piece)
    file = JsonFile(cache_folder.folder() / "onnxruntime", _key(source, n_threads), MAX_RESULTS)
    found = _of(file.read(), chosen)
    if found is None:
        found = _of(dict(zip(chosen, _tried(cut, source, chosen, n_threads), strict=False)), chosen)
        if found is None:
            return []
        file.write({kind: _listed(size) for kind, size in found.items()})
    return [found[by_graph[piece.graph]] for piece in cut.pieces]


def _can_measure() -> bool:
    """True where the kernel tells a process's peak, and Python can be started."""
    name = Path(sys.executable or "").name.lower()
    is_python = name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)
    return sys.platform == "linux" and is_python


def _tried(cut: Cut, source: Source, chosen: dict[str, Piece], n_threads: int) -> list[Any]:
    """The trial's answers in the order of `chosen`; empty if there is none."""
    folder, places = source.references()
    graphs = [
        with_constants(
            cut.graphs[piece.graph], {short: places[name] for short, name in piece.weights}
        )
        for piece in chosen.values()
    ]
    lengths = [len(graph) for graph in graphs]
    request = json.dumps({"folder": str(folder), "n_threads": n_threads, "lengths": lengths})
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(
            [sys.executable, "-m", "edgespec_runtimes.onnx.trials"],
            input=b"".join((request.encode(), b"\n", *graphs)),
            check=True,
            capture_output=True,
            timeout=TIMEOUT_S,
            start_new_session=True,
        )
        answers = json.loads(done.stdout)
        return answers if isinstance(answers, list) else []
    return []


def _of(content: Any, chosen: dict[str, Piece]) -> dict[str, SessionSize] | None:
    """Sizes from a cached or new result; None if one is missing or no size."""
    if not isinstance(content, dict):
        return None
    found = {}
    for kind in chosen:
        numbers = content.get(kind)
        if not isinstance(numbers, list) or len(numbers) != 3:
            return None
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            return None
        found[kind] = SessionSize(*numbers)
    return found


def _listed(size: SessionSize) -> list[int]:
    return [size.kept_bytes, size.private_bytes, size.peak_bytes]


def _structure(cut: Cut, piece: Piece, source: Source) -> str:
    """Digest of a piece's operators and of its weights' types and shapes."""
    nodes = onnx.load_from_string(cut.graphs[piece.graph]).graph.node
    operators = Counter(_described(node) for node in nodes)
    weights = Counter(
        (source.weights[name].kind, source.weights[name].shape) for _, name in piece.weights
    )
    return _short_hash(repr((sorted(operators.items()), sorted(weights.items()))))


def _described(node: onnx.NodeProto) -> str:
    """An operator with its whole-number attributes, such as an accuracy level."""
    numbers = sorted((item.name, item.i) for item in node.attribute)
    return f"{node.domain}.{node.op_type}{numbers}"


def _key(source: Source, n_threads: int) -> str:
    name, flags = processor()
    known = (list(_known(source)), ort.__version__, n_threads, name, sorted(flags))
    return _short_hash(repr(known))


def _known(source: Source) -> Iterator[object]:
    for file in source.files:
        state = file.stat()
        yield Path(file).resolve(), state.st_size, state.st_mtime_ns


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]
