"""Copies weights that cannot be used where they are to files in the cache folder.

The key of a copy is the path, sizes and times of the model's files. Copies are written atomically,
so several processes may write the same one. A copy has its model's time of change: one that was
written to since has another, and is made again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np
from onnx import TensorProto, numpy_helper

from edgespec.errors import Cancelled, ModelError
from edgespec.files import cache_folder
from edgespec.files.unfinished import unfinished_file
from edgespec.paging.reader import BLOCK_BYTES, Extent
from edgespec.ports import Progress
from edgespec_runtimes.onnx.files.outline import INLINE_BYTES
from edgespec_runtimes.onnx.files.source_model import SourceModel, StoredWeight

SMALL_BYTES = 1 << 16
"""Weights up to this size are kept in memory and need no alignment."""
_COPY_BYTES = 4 << 20
_ALIGNMENT = 64
_TIME_STEP_S = 2
"""Seconds between the times of change that every file system can keep."""
_NUMBERS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
"""Fields in which a TensorProto holds elements as numbers."""


def folder() -> Path:
    return cache_folder.folder() / "onnx"


def aligned(source: SourceModel, is_stopped: Callable[[], bool]) -> SourceModel:
    """A source whose larger weights are all aligned.

    Tensors in a protobuf may begin at any byte; such a model's weights are copied once to a file in
    the cache folder. Raises ModelError and Cancelled.
    """
    weights = source.weights.values()
    if all(weight.is_aligned or weight.nbytes <= SMALL_BYTES for weight in weights):
        return source
    places, end = _laid_out(source)
    path = copied(
        source,
        "weights",
        end,
        lambda out: _copy_weights(source, places, out, end, is_stopped),
        "the weights must be copied to be streamed",
    )
    return replace(source, files=(path,), weights=places)


def as_bytes(source: SourceModel) -> SourceModel:
    """A source whose larger tensors are all bytes in a file.

    Writers may also store them as numbers inside the graph (int32_data and other fields); those are
    written once to a file in the cache folder. Raises ModelError.
    """
    initializers = source.model.graph.initializer
    tensors = [tensor for tensor in initializers if _holds_numbers(tensor)]
    contents = [_bytes_of(source, tensor) for tensor in tensors]
    contents = [content if len(content) > INLINE_BYTES else b"" for content in contents]
    if not any(contents):
        return source
    begins = [0, *accumulate(len(content) + -len(content) % _ALIGNMENT for content in contents)]

    def write(out: BinaryIO) -> None:
        for begin, content in zip(begins, contents, strict=False):
            out.seek(begin)
            out.write(content)
        out.truncate(begins[-1])

    why = "the weights must be copied to be streamed"
    path = copied(source, "bytes", begins[-1], write, why)
    weights = dict(source.weights)
    for tensor, begin, content in zip(tensors, begins, contents, strict=False):
        if content:
            extent = Extent(len(source.files), begin, len(content))
            shape = tuple(tensor.dims)
            weights[tensor.name] = StoredWeight(tensor.name, tensor.data_type, shape, extent)
            for field in _NUMBERS:
                tensor.ClearField(field)
            tensor.data_location = TensorProto.EXTERNAL
    return replace(source, files=(*source.files, path), weights=weights)


def _holds_numbers(tensor: TensorProto) -> bool:
    is_inside = tensor.data_location != TensorProto.EXTERNAL
    return is_inside and any(len(getattr(tensor, field)) for field in _NUMBERS)


def _bytes_of(source: SourceModel, tensor: TensorProto) -> bytes:
    try:
        return bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{source.path} is damaged: {tensor.name} has not the numbers of its shape and type "
            f"({error}); export or copy it again"
        ) from error


def by_row(
    source: SourceModel,
    table: str,
    is_stopped: Callable[[], bool],
    progress: Progress | None = None,
) -> SourceModel:
    """A transposed table [hidden, tokens] as [tokens, hidden] in a file of its own.

    A column is spread over the whole table, a row is contiguous. The table is copied once to a file
    in the cache folder. Raises ModelError and Cancelled.
    """
    weight = source.weights[table]
    path = copied(
        source,
        f"{_short_hash(table)}.rows",
        weight.nbytes,
        lambda out: _copy_by_row(source, weight, out, is_stopped, progress),
        "the embeddings must be copied to be looked up by row",
    )
    turned = StoredWeight(table, weight.kind, weight.shape[::-1], Extent(0, 0, weight.nbytes))
    return replace(source, files=(path,), weights={table: turned})


def copied(
    source: SourceModel,
    kind: str,
    nbytes: int,
    write: Callable[[BinaryIO], None],
    why: str,
    made_by: str = "",
) -> Path:
    """A file written by `write` from a model's weights, once until the model or `made_by` changes.

    It replaces the earlier file of this kind, and those of like kinds (`like.this`) that were made
    from an earlier version of the model. A file that was changed is made again, with a note of the
    source. Raises ModelError.
    """
    place, state = _identity(source)
    version = f"-{made_by}" if made_by else ""
    path = folder() / f"{place}-{state}{version}.{kind}"
    time_s = _time_of_copies(source)
    if not _is_whole(path, nbytes, time_s):
        if path.exists():
            source.notes.append(f"{path} was not as it had been written, and was made again")
        for other in folder().glob(f"{place}-*.{kind.rpartition('.')[2]}"):
            is_present = other.name.startswith(f"{place}-{state}")
            if other != path and (other.name.endswith(f".{kind}") or not is_present):
                with suppress(OSError):
                    other.unlink()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished_file(path) as out:
                write(out)
            os.utime(path, (time_s, time_s))
        except OSError as error:
            raise ModelError(
                f"{source.path}: {why}, and writing {path} failed: {error.strerror}; free some "
                "space there, or let XDG_CACHE_HOME name a folder that has it"
            ) from error
    return path


def _is_whole(path: Path, nbytes: int, time_s: int) -> bool:
    """True if nobody has written to the copy at `path` since it was made."""
    with suppress(OSError):
        status = path.stat()
        return (status.st_size, status.st_mtime_ns) == (nbytes, time_s * 10**9)
    return False


def _time_of_copies(source: SourceModel) -> int:
    """Seconds of the last change of a model, rounded down to what every file system can keep."""
    changed_s = max(int(file.stat().st_mtime) for file in source.files)
    return changed_s - changed_s % _TIME_STEP_S


def _identity(source: SourceModel) -> tuple[str, str]:
    """Digests of the model's path, and of its files' sizes and times."""
    states = [file.stat() for file in source.files]
    known = [(state.st_size, state.st_mtime_ns, state.st_ino) for state in states]
    return _short_hash(str(source.path.resolve())), _short_hash(repr(known))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _laid_out(source: SourceModel) -> tuple[dict[str, StoredWeight], int]:
    """The weights with positions in a new file, in order, and its size."""
    places: dict[str, StoredWeight] = {}
    end = 0
    for weight in source.weights.values():
        begin = -(-end // BLOCK_BYTES) * BLOCK_BYTES if weight.nbytes > BLOCK_BYTES else end
        begin = -(-begin // _ALIGNMENT) * _ALIGNMENT
        extent = Extent(0, begin, weight.nbytes)
        places[weight.name] = StoredWeight(weight.name, weight.kind, weight.shape, extent)
        end = begin + weight.nbytes
    return places, end


def _copy_weights(
    source: SourceModel,
    places: dict[str, StoredWeight],
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
                    raise ModelError(
                        f"{source.path} became shorter while it was read: copy it again"
                    )
                out.write(data)
                left -= len(data)


def _copy_by_row(
    source: SourceModel,
    weight: StoredWeight,
    out: BinaryIO,
    is_stopped: Callable[[], bool],
    progress: Progress | None,
) -> None:
    """Transpose a few columns at a time, because the table may be larger than memory."""
    n_rows, n_columns = weight.shape
    item = np.dtype(f"u{weight.nbytes // (n_rows * n_columns)}")
    step = max(1, _COPY_BYTES // (n_rows * item.itemsize))
    row_bytes = n_columns * item.itemsize
    with source.files[weight.extent.file_index].open("rb", buffering=0) as file:
        for begin in range(0, n_columns, step):
            some = np.empty((n_rows, min(step, n_columns - begin)), item)
            for row in range(n_rows):
                if is_stopped():
                    raise Cancelled("loading was cancelled")
                file.seek(weight.extent.offset + row * row_bytes + begin * item.itemsize)
                if file.readinto(memoryview(some[row])) != some[row].nbytes:
                    raise ModelError(
                        f"{source.path} became shorter while it was read: copy it again"
                    )
            out.write(some.T.tobytes())
            if progress:
                progress("copying embeddings, once", min(1.0, (begin + step) / n_columns))
