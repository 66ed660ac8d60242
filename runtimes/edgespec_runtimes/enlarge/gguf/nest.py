"""Splits a model's weights into upper parts, which a draft has, and a file of lower parts.

Reads each weight once. Does not choose what nests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgespec.errors import ModelError
from edgespec.files.cache_folder import lower_parts
from edgespec.files.sampled import sampled_digest
from edgespec_runtimes.enlarge.gguf.gguf_writer import NewModel, pack_pair, read_bytes
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry, read_header
from edgespec_runtimes.gguf.file.layout import EMBEDDINGS, KINDS, OUTPUT
from edgespec_runtimes.gguf.weights.nested import ALIGNMENT, LOWER, SOURCE, nesting_of
from edgespec_runtimes.gguf.weights.nesting import UNIT, Nesting

_BYTES = KINDS["I8"]
_CHUNK_UNITS = 4096
"""Units that are split at a time, about a megabyte."""
_DIGITS = 64
_ARCHITECTURE = "general.architecture"


class CannotNest(Exception):
    """A block of a tensor, whose name it carries, has no upper part."""


class LowerParts:
    """The lower parts of a model's weights, written to `file` while their upper parts are read."""

    def __init__(self, header: GgufFile, file: BinaryIO, kind: str, whole: Collection[str]) -> None:
        """The matrices `whole` are not split."""
        self._kind, self._whole = kind, frozenset(whole)
        self.nestings: Mapping[str, Nesting] = {
            tensor.name: nesting
            for tensor in header.tensors
            if tensor.name not in (EMBEDDINGS, OUTPUT) and (nesting := self.nesting(tensor))
        }
        if not self.nestings:
            raise ModelError(f"{header.path} has no weights that nest: choose another quantisation")
        described = []
        for tensor in header.tensors:
            if nesting := self.nestings.get(tensor.name):
                row_bytes = tensor.shape[0] // UNIT * nesting.lower_bytes
                described.append((tensor.name, _BYTES, (row_bytes, *tensor.shape[1:])))
        alignment = pack_pair("general.alignment", ALIGNMENT)
        pairs = [pack_pair(_ARCHITECTURE, "edgespec-lower-parts"), alignment]
        self.model = NewModel(pairs, described, ALIGNMENT)
        self._source = sampled_digest(header.paths, with_times=False)
        self._file = file
        file.write(self.model.head)

    @property
    def pairs(self) -> list[bytes]:
        """Metadata of the draft, in which `seal` puts the digest of the lower parts."""
        return [pack_pair(SOURCE, self._source), pack_pair(LOWER, "-" * _DIGITS)]

    def nesting(self, tensor: TensorEntry) -> Nesting | None:
        """The way in which a matrix is split; None if it is not."""
        return None if tensor.name in self._whole else nesting_of(tensor, self._kind)

    def split(self, header: GgufFile, tensor: TensorEntry) -> Iterator[bytes]:
        """The upper part of a tensor, in pieces; its lower part is written. Raises CannotNest."""
        nesting = self.nestings[tensor.name]
        n_bytes = _CHUNK_UNITS * nesting.file_bytes
        for start in range(0, tensor.nbytes, n_bytes):
            size = min(n_bytes, tensor.nbytes - start)
            raw = read_bytes(header.paths[tensor.file_index], tensor.offset + start, size)
            parts = nesting.split(np.frombuffer(raw, np.uint8).reshape(-1, nesting.file_bytes))
            if parts is None:
                raise CannotNest(tensor.name)
            self._file.write(parts[1].tobytes())
            yield parts[0].tobytes()
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))


def upper_rows(nesting: Nesting, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The upper parts of whole rows. Raises CannotNest."""
    for piece in pieces:
        units = np.frombuffer(piece, np.uint8).reshape(-1, nesting.file_bytes)
        for start in range(0, len(units), _CHUNK_UNITS):
            parts = nesting.split(units[start : start + _CHUNK_UNITS])
            if parts is None:
                raise CannotNest(EMBEDDINGS)
            yield parts[0].tobytes()


def seal(draft: Path) -> None:
    """Note the digest of the lower parts in a draft that is complete."""
    digest = sampled_digest([lower_parts(draft)], with_times=False)
    end = read_header(draft).entries[LOWER].end
    with draft.open("r+b") as file:
        file.seek(end - _DIGITS)
        file.write(digest.encode())
