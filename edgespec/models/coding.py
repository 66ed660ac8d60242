"""Writes coded copies of models' half-precision weights, and says where reading them pays.

Asks the model's runtime where such weights lie; how they are coded is elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from edgespec import runtimes, theory
from edgespec.errors import ModelError, UsageError, WeightReadError
from edgespec.files import cache_folder
from edgespec.files.fingerprint import fingerprint
from edgespec.paging import coding, disk_speed
from edgespec.paging.coded_file import Pieces, open_coded, write_coded
from edgespec.paging.coded_reader import (
    N_SAMPLES,
    CodedIndex,
    decoded_bytes_per_s,
    decoding_seconds,
)
from edgespec.paging.coding import PIECE_BYTES, Decoder, Encoder
from edgespec.ports import Progress
from edgespec.runtimes import LocatesWeights


@dataclass(frozen=True, slots=True)
class CodedCopy:
    """What was written, and what it is good for on this machine."""

    path: Path
    size_bytes: int
    weight_bytes: int
    """Of the weights that it holds."""
    other_bytes: int
    """Of the model's other weights, which are read as they are."""
    share: float
    """Bytes of the copy for each byte of weights."""
    decoded_bytes_per_s: float
    """By one core."""
    pays_below_bytes_per_s: float
    disk_bytes_per_s: float | None
    """Of the model's storage; None for a model too small to tell."""


def code(
    model: Path, out: Path | None = None, progress: Progress | None = None, overwrite: bool = False
) -> CodedCopy:
    """Write a copy of the model's half-precision weights to `out`, or to where `generate` and all
    others look for it by themselves.

    Raises UsageError for what cannot be meant, ModelError for a model without such weights, and
    EdgespecError for a full disk.
    """
    coding.check_installed()
    runtime = runtimes.find(model)
    if not isinstance(runtime, LocatesWeights):
        raise ModelError(f"{model} is no GGUF model: only of those there are coded copies")
    found = runtime.half_precision(model)
    if not found.extents:
        raise ModelError(
            f"{model} has no matrices in half precision (F16 or BF16) that coding would make "
            "smaller: it is for models that are not quantised"
        )
    source = fingerprint(found.files)
    if out is None:
        size_bytes = sum(file.stat().st_size for file in found.files)
        out = cache_folder.coded_copy(model, size_bytes, source)
        cache_folder.make_folder()
        out.parent.mkdir(exist_ok=True)
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists: --force overwrites it")
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"{out} must be a file in a folder that exists")
    if any(out.exists() and out.samefile(file) for file in found.files):
        raise UsageError(f"{out} is the model itself: write the copy elsewhere")
    write_coded(out, found.files, source, found.extents, progress)
    return _described(out, model, found.other_bytes)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a coded copy of a model would bring, by a sample of its weights."""

    share: float
    """Bytes that passes would read for each byte of all weights."""
    pays_below_bytes_per_s: float


def prospect(model: Path, clock: Callable[[], float] = time.perf_counter) -> Prospect | None:
    """None for a model of which there can be no copy, or not here. Raises ModelError and
    WeightReadError."""
    runtime = runtimes.find(model)
    found = runtime.half_precision(model) if isinstance(runtime, LocatesWeights) else None
    if found is None or not found.extents:
        return None
    try:
        encoder, decoder = Encoder(), Decoder()
    except UsageError:
        return None
    seconds, n_coded, n_plain, decoded = [], 0, 0, np.empty(PIECE_BYTES, np.uint8)
    with Pieces(found.files) as pieces:
        for extent in found.extents[:: -(-len(found.extents) // N_SAMPLES)]:
            piece = next(pieces.of(replace(extent, nbytes=min(extent.nbytes, PIECE_BYTES))))
            coded = encoder.encode(piece)
            found_s = decoding_seconds(decoder, memoryview(coded), decoded[: len(piece)], clock)
            seconds.append((found_s or 0.0) / len(piece))
            n_coded, n_plain = n_coded + len(coded), n_plain + len(piece)
    share, per_s = n_coded / n_plain, 1 / max(median(seconds), 1e-15)
    weight_bytes = sum(extent.nbytes for extent in found.extents)
    read_bytes = share * weight_bytes + found.other_bytes
    return Prospect(
        read_bytes / (weight_bytes + found.other_bytes), theory.decoding_pays_below(share, per_s)
    )


def _described(path: Path, model: Path, other_bytes: int) -> CodedCopy:
    coded = open_coded(path)
    decoded = decoded_bytes_per_s(CodedIndex(coded))
    try:
        disk = disk_speed.bytes_per_second(model)
    except WeightReadError:
        disk = None
    return CodedCopy(
        path=path,
        size_bytes=path.stat().st_size,
        weight_bytes=coded.weight_bytes,
        other_bytes=other_bytes,
        share=coded.share,
        decoded_bytes_per_s=decoded,
        pays_below_bytes_per_s=theory.decoding_pays_below(coded.share, decoded),
        disk_bytes_per_s=disk,
    )
