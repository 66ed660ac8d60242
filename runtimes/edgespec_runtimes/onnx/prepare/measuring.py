"""Measures what onnxruntime takes for the weights of a decoder's pieces, in a process of its own.

onnxruntime packs, folds and converts constants by rules that differ between its versions and
processors. Pieces of equal structure are measured once, and one of each in one session, so a trial
needs little more memory than the largest pieces. It also tells which pieces can exchange their
packed constants. Results are kept per file, version and processor.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnxruntime as ort
from onnx import compose

from edgespec.concurrency import own_processes
from edgespec.concurrency.program import run_program
from edgespec.files import cache_folder
from edgespec.files.json_file import JsonFile
from edgespec.files.unfinished import sweep
from edgespec.memory.process import processor
from edgespec_runtimes.onnx.files.source_model import SourceModel
from edgespec_runtimes.onnx.graph.cutting import Cut, Piece
from edgespec_runtimes.onnx.ort.telemetry import silent_environment
from edgespec_runtimes.onnx.weights import artifacts
from edgespec_runtimes.onnx.weights.exchange import Constant, Layout
from edgespec_runtimes.onnx.weights.packed import is_packed, with_stored

MEASURED_BYTES = 32 << 20
"""Size of weights below which measuring is not worth a process."""
PROCESSOR_S = 240
"""Processor time after which a trial is given up: on a busy machine, seconds say little."""
TIMEOUT_S = 900.0
MAX_RESULTS = 64
MIN_OTHERS_BYTES = 2 << 20
"""Size of other pieces from which on what they take is told from noise."""
NOISE_SHARE = 0.1
"""Uncertainty of `MeasuredOnnx.taken_share`."""
_TOGETHER = "together"
"""Key of the size of a session of one piece of each kind."""
_TRIAL = 4
"""Number of the trial's present method, whose results alone are used."""


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


@dataclass(frozen=True, slots=True)
class Exchange:
    """A session whose packed constants are exchanged between the pieces of a graph."""

    layout: Layout
    size: SessionSize
    """Sizes of the session; its peak is also that of saving a piece."""


@dataclass(frozen=True, slots=True)
class MeasuredOnnx:
    """Sizes of sessions, as measured; nothing on systems that cannot, and for small models."""

    sizes: tuple[SessionSize, ...] = ()
    """Size of a session of each piece."""
    exchanges: Mapping[int, Exchange] = field(default_factory=dict)
    """Sessions that exchange constants, by graph of the cut; empty if one of its packed graphs with
    several pieces cannot."""
    taken_share: float = 1.0
    """Share of what the other pieces keep that a whole session has taken when the piece with the
    largest peak is at its peak."""
    has_failed: bool = False
    """The trial was given up, so that sizes must be computed."""


def measured(whole: Cut, cut: Cut, source: SourceModel, n_threads: int) -> MeasuredOnnx:
    """Measure the pieces of a decoder on Linux, if it has some size.

    `whole` computes as a session of all pieces does; `cut` may convert half precision otherwise.
    """
    if not _can_measure() or source.weight_bytes < MEASURED_BYTES:
        return MeasuredOnnx()
    by_graph: dict[int, str] = {}
    chosen: dict[str, Piece] = {}
    for piece in whole.pieces:
        if piece.graph not in by_graph:
            by_graph[piece.graph] = _structure(whole, piece, source)
            chosen.setdefault(by_graph[piece.graph], piece)
    pairs = _pairs(cut)
    keys = [*chosen, _TOGETHER, *(_short_hash(repr(cut.graphs[graph])) for graph in pairs)]
    file = JsonFile(cache_folder.folder() / "onnxruntime", _key(source, n_threads), MAX_RESULTS)
    content = file.read()
    is_known = isinstance(content, dict) and content.keys() >= set(keys)
    found = _all_sizes(content, chosen) if is_known else None
    if found is None:
        graphs = [with_stored(whole, piece, source)[0] for piece in chosen.values()]
        graphs.append(_joined(graphs))
        graphs += [with_stored(cut, piece, source)[0] for pair in pairs.values() for piece in pair]
        answers = _tried(graphs, len(pairs), source, n_threads)
        content = dict(zip(keys, answers, strict=False))
        found = _all_sizes(content, chosen)
        if found is None:
            return MeasuredOnnx(has_failed=True)
        file.write(content)
    sizes = tuple(found[by_graph[piece.graph]] for piece in whole.pieces)
    exchanges = {
        graph: _exchange(content.get(key))
        for graph, key in zip(pairs, keys[len(chosen) + 1 :], strict=True)
    }
    usable = {graph: one for graph, one in exchanges.items() if one is not None}
    share = _taken_share(list(found.values()), _size(content.get(_TOGETHER)))
    return MeasuredOnnx(sizes, usable if len(usable) == len(exchanges) else {}, share)


def _taken_share(kinds: Sequence[SessionSize], together: SessionSize | None) -> float:
    """`MeasuredOnnx.taken_share`, by a session of one piece of each of `kinds`; 1 if unknown."""
    largest = max(kinds, key=lambda size: size.peak_bytes)
    others_bytes = sum(size.kept_bytes for size in kinds) - largest.kept_bytes
    if together is None or others_bytes < MIN_OTHERS_BYTES:
        return 1.0
    share = (together.peak_bytes - largest.peak_bytes) / others_bytes
    return min(1.0, max(0.0, share) + NOISE_SHARE)


def _joined(graphs: Sequence[bytes]) -> bytes:
    """A graph of several graphs, in order, that have nothing to do with each other."""
    whole = onnx.load_from_string(graphs[0])
    whole.graph.Clear()
    whole.graph.name = "pieces"
    for number, graph in enumerate(graphs):
        part = compose.add_prefix(onnx.load_from_string(graph), f"{number}.").graph
        for parts in ("node", "input", "output", "initializer"):
            getattr(whole.graph, parts).extend(getattr(part, parts))
    content: bytes = whole.SerializeToString()
    return content


def _pairs(cut: Cut) -> dict[int, tuple[Piece, Piece]]:
    """The first two pieces of each packed graph that has several."""
    pieces: dict[int, list[Piece]] = {}
    for piece in cut.pieces:
        pieces.setdefault(piece.graph, []).append(piece)
    return {
        graph: (alike[0], alike[1])
        for graph, alike in pieces.items()
        if len(alike) > 1 and is_packed(cut.graphs[graph])
    }


def _can_measure() -> bool:
    """True where the kernel tells a process's peak, and Python can be started."""
    return sys.platform == "linux" and own_processes.is_available()


def _tried(graphs: Sequence[bytes], n_pairs: int, source: SourceModel, n_threads: int) -> list[Any]:
    """The trial's answers, in order; the last `2 * n_pairs` graphs are pairs, the one before is of
    several pieces. Empty if there are none."""
    folder, _ = source.references()
    with suppress(OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        artifacts.folder().mkdir(parents=True, exist_ok=True)
        request = {
            "folder": str(folder),
            "scratch": str(artifacts.folder()),
            "n_threads": n_threads,
            "lengths": [len(graph) for graph in graphs],
            "pairs": n_pairs,
            "processor_s": PROCESSOR_S,
        }
        try:
            said = run_program(
                own_processes.python("-m", "edgespec_runtimes.onnx.trials"),
                TIMEOUT_S,
                silent_environment(),
                b"".join((json.dumps(request).encode(), b"\n", *graphs)),
            )
        finally:
            sweep(artifacts.folder())  # what a killed trial was writing
        answers = json.loads(said)
        return [*answers["sizes"], *answers["exchanged"]]
    return []


def _all_sizes(content: Mapping[str, Any], kinds: Iterable[str]) -> dict[str, SessionSize] | None:
    """Sizes by kind; None if one is missing or no size."""
    found = {kind: _size(content.get(kind)) for kind in kinds}
    sizes = {kind: size for kind, size in found.items() if size is not None}
    return sizes if len(sizes) == len(found) else None


def _size(numbers: Any) -> SessionSize | None:
    if not isinstance(numbers, list) or len(numbers) != 3:
        return None
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        return None
    return SessionSize(*numbers)


def _exchange(answer: Any) -> Exchange | None:
    """An answer of the trial; None if constants cannot be exchanged."""
    with suppress(TypeError, KeyError, ValueError):
        size = _size(answer["size"])
        found = [(str(name), int(form), int(n)) for name, form, n in answer["constants"]]
        layout = Layout(tuple(Constant(*one) for one in found))
        return Exchange(layout, size) if size and layout.constants else None
    return None


def _structure(cut: Cut, piece: Piece, source: SourceModel) -> str:
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


def made_by(cut: Cut) -> str:
    """Digest of what decides how the weights of these graphs are packed."""
    return _short_hash(repr((cut.graphs, *_packer())))


def _packer() -> tuple[object, ...]:
    name, flags = processor()
    return ort.__version__, name, sorted(flags)


def _key(source: SourceModel, n_threads: int) -> str:
    states = [(file.resolve(), file.stat()) for file in source.files]
    known = [(path, state.st_size, state.st_mtime_ns) for path, state in states]
    return _short_hash(repr((_TRIAL, known, n_threads, *_packer())))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]
