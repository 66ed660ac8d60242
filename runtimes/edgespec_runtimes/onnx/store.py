"""Keeps what was made from a model's graph in the cache folder, under a hash of what it is made of.

Entries are written beside their place and moved there whole, so that several processes may write
the same one; an entry that is damaged is made again. A folder that cannot
be written costs time only.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from edgespec import cache
from edgespec.errors import Cancelled, ModelError
from edgespec.reading import BLOCK_BYTES, Extent
from edgespec_runtimes.onnx.cutting import Cut, Piece
from edgespec_runtimes.onnx.source import Source, Weight

SMALL_BYTES = 1 << 16
"""Weights up to this size can be kept in memory wherever they lie in their file."""
_COPY_BYTES = 4 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size


def folder() -> Path:
    return cache.folder() / "onnx"


def cached_cut(key: bytes, make: Callable[[], Cut]) -> Cut:
    """The cut of a graph; `key` is all that it depends on."""
    path = folder() / f"{hashlib.sha256(key).hexdigest()[:32]}.cut"
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _unpacked(path.read_bytes())
    made = make()
    with suppress(OSError), _replacing(path) as file:
        file.write(_packed(made))
    return made


def aligned(source: Source, is_stopped: Callable[[], bool]) -> Source:
    """The same model with every larger weight at an address that the processor can read from.

    What lies in a protobuf begins at any byte. Such a model's weights are copied once, to a file
    in the cache folder. Raises ModelError, and Cancelled.
    """
    weights = source.weights.values()
    if all(weight.is_aligned or weight.nbytes <= SMALL_BYTES for weight in weights):
        return source
    place, state = _identity(source)
    path = folder() / f"{place}-{state}.weights"
    places, end = _laid_out(source)
    if not (path.is_file() and path.stat().st_size == end):
        for outdated in folder().glob(f"{place}-*.weights"):
            with suppress(OSError):
                outdated.unlink()
        try:
            with _replacing(path) as out:
                _copy_weights(source, places, out, end, is_stopped)
        except OSError as error:
            raise ModelError(
                f"the weights of {source.path} must be copied to {path} to be streamed, which "
                f"failed: {error.strerror}"
            ) from error
    return Source(source.path, source.model, (path,), places)


def _identity(source: Source) -> tuple[str, str]:
    """Of the model, without reading it: where it lies; how large and how old its files are."""
    states = [file.stat() for file in source.files]
    known = [(state.st_size, state.st_mtime_ns, state.st_ino) for state in states]
    return _short_hash(str(source.path.resolve())), _short_hash(repr(known))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _laid_out(source: Source) -> tuple[dict[str, Weight], int]:
    """The weights in a file of their own, in their order, and its size."""
    places: dict[str, Weight] = {}
    end = 0
    for weight in source.weights.values():
        begin = -(-end // BLOCK_BYTES) * BLOCK_BYTES if weight.nbytes > BLOCK_BYTES else end
        begin = -(-begin // 64) * 64
        extent = Extent(0, begin, weight.nbytes)
        places[weight.name] = Weight(weight.name, weight.kind, weight.shape, extent)
        end = begin + weight.nbytes
    return places, end


def _copy_weights(
    source: Source,
    places: dict[str, Weight],
    out: BinaryIO,
    end: int,
    is_stopped: Callable[[], bool],
) -> None:
    out.truncate(end)
    for weight in source.weights.values():
        with source.files[weight.extent.file_index].open("rb", buffering=0) as file:
            file.seek(weight.extent.offset)
            out.seek(places[weight.name].extent.offset)
            left = weight.nbytes
            while left:
                if is_stopped():
                    raise Cancelled("loading was cancelled")
                data = file.read(min(left, _COPY_BYTES))
                if not data:
                    raise ModelError(f"{source.path} became shorter while it was read")
                out.write(data)
                left -= len(data)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when it is complete, and is gone otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _packed(made: Cut) -> bytes:
    """A digest of the rest, a line of JSON, and the graphs one after the other."""
    description: dict[str, Any] = {
        "sizes": [len(graph) for graph in made.graphs],
        "pieces": [asdict(piece) for piece in made.pieces],
        "embeddings": made.embeddings,
    }
    rest = json.dumps(description).encode() + b"\n" + b"".join(made.graphs)
    return hashlib.sha256(rest).digest() + rest


def _unpacked(data: bytes) -> Cut:
    rest = data[_DIGEST_BYTES:]
    if hashlib.sha256(rest).digest() != data[:_DIGEST_BYTES]:
        raise ValueError("the entry is damaged")
    line, _, graphs = rest.partition(b"\n")
    description = json.loads(line)
    at, parts = 0, []
    for size in description["sizes"]:
        parts.append(graphs[at : at + size])
        at += size
    pieces = [
        Piece(
            piece["name"],
            piece["stage"],
            piece["graph"],
            _pairs(piece["inputs"]),
            _pairs(piece["weights"]),
            _pairs(piece["outputs"]),
        )
        for piece in description["pieces"]
    ]
    return Cut(tuple(parts), tuple(pieces), _pairs(description["embeddings"]))


def _pairs(items: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((first, second) for first, second in items)
