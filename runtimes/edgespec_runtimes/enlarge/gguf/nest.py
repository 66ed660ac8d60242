"""Splits a model's weights into upper parts, which a draft has, and a file of lower parts.

Reads each weight once. Does not choose what nests.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from edgespec.errors import ModelError
from edgespec.files.cache_folder import lower_parts
from edgespec.files.sampled import sampled_digest
from edgespec_runtimes.enlarge.gguf.gguf_writer import CHUNK_BYTES, NewModel, pack_pair, read_bytes
from edgespec_runtimes.enlarge.gguf.ways import nesting_of
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.layout import BY_TOKEN, EMBEDDINGS, KINDS
from edgespec_runtimes.gguf.own_draft.nested import (
    ALIGNMENT,
    SOURCE,
    SUMMED_BYTES,
    SUMS,
    checksums,
)
from edgespec_runtimes.gguf.own_draft.nesting import UNIT, Nesting

_BYTES = KINDS["I8"]
_CHUNK_UNITS = 4096
"""Units that are split at a time, about a megabyte."""
_NO_DIGEST = b"-" * 64
_ARCHITECTURE = "general.architecture"


class CannotNest(Exception):
    """A block of a tensor, whose name it carries, has no upper part."""


class LowerParts:
    """The lower parts of a model's weights."""

    def __init__(self, header: GgufFile, kind: str, whole: Collection[str]) -> None:
        """The matrices `whole` are not split."""
        self._kind, self._whole = kind, frozenset(whole)
        self.nestings: Mapping[str, Nesting] = {
            tensor.name: nesting
            for tensor in header.tensors
            if tensor.name not in BY_TOKEN and (nesting := self.nesting(tensor))
        }
        if not self.nestings:
            raise ModelError(f"{header.path} has no weights that nest: choose another quantisation")
        described = []
        for tensor in header.tensors:
            if nesting := self.nestings.get(tensor.name):
                row_bytes = tensor.shape[0] // UNIT * nesting.lower_bytes
                described.append((tensor.name, _BYTES, (row_bytes, *tensor.shape[1:])))
        alignment = pack_pair("general.alignment", ALIGNMENT)
        self.source = pack_pair(SOURCE, sampled_digest(header.paths, with_times=False))
        """Metadata of both files."""
        pairs = [pack_pair(_ARCHITECTURE, "edgespec-lower-parts"), alignment, self.source]
        sums_bytes = 8 * sum(one.nbytes for one in header.tensors) // SUMMED_BYTES
        self.model = NewModel(
            [*pairs, pack_pair(SUMS, _NO_DIGEST.decode())], described, ALIGNMENT, sums_bytes
        )

    def nesting(self, tensor: TensorEntry) -> Nesting | None:
        """The way in which a matrix is split; None if it is not."""
        return None if tensor.name in self._whole else nesting_of(tensor, self._kind)

    def split(self, header: GgufFile, tensor: TensorEntry) -> Iterator[tuple[bytes, bytes]]:
        """The upper and the lower part of a tensor, in pieces. Raises CannotNest."""
        nesting = self.nestings[tensor.name]
        n_bytes = _CHUNK_UNITS * nesting.file_bytes
        for start in range(0, tensor.nbytes, n_bytes):
            size = min(n_bytes, tensor.nbytes - start)
            raw = read_bytes(header.paths[tensor.file_index], tensor.offset + start, size)
            parts = nesting.split(np.frombuffer(raw, np.uint8).reshape(-1, nesting.file_bytes))
            if parts is None:
                raise CannotNest(tensor.name)
            yield parts[0].tobytes(), parts[1].tobytes()

    def seal(self, draft: Path) -> None:
        """Add checksums of the lower parts, which are complete, and of the draft."""
        sums = []
        with draft.open("rb") as upper, lower_parts(draft).open("r+b") as lower:
            for file in (lower, upper):
                while raw := file.read(CHUNK_BYTES):
                    sums.append(checksums(raw))
            joined = np.concatenate(sums).tobytes()
            lower.write(joined)
            lower.seek(self.model.head.index(_NO_DIGEST))
            lower.write(hashlib.sha256(joined).hexdigest().encode())
            lower.flush()
            os.fsync(lower.fileno())


def upper_rows(nesting: Nesting, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The upper parts of whole rows. Raises CannotNest."""
    for piece in pieces:
        units = np.frombuffer(piece, np.uint8).reshape(-1, nesting.file_bytes)
        for start in range(0, len(units), _CHUNK_UNITS):
            parts = nesting.split(units[start : start + _CHUNK_UNITS])
            if parts is None:
                raise CannotNest(EMBEDDINGS)
            yield parts[0].tobytes()
