"""Splits a model's weights into upper parts, which a draft has, and a file of lower parts.

Reads each weight once. Does not choose what nests.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from edgespec.errors import ModelError
from edgespec.files.cache_folder import lower_parts
from edgespec.files.sampled import sampled_digest
from edgespec.memory.process import usable_cores
from edgespec_runtimes.enlarge.gguf.gguf_writer import CHUNK_BYTES, NewModel, pack_pair
from edgespec_runtimes.enlarge.gguf.ways import nesting_of
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.layout import BY_TOKEN, KINDS
from edgespec_runtimes.gguf.own_draft.nested import (
    ALIGNMENT,
    NO_DIGEST,
    SOURCE,
    SUMMED_BYTES,
    SUMS,
    checksums,
)
from edgespec_runtimes.gguf.own_draft.nesting import UNIT, Nesting

_BYTES = KINDS["I8"]
_CHUNK_UNITS, _AT_ONCE = 256, 4
"""Units of a chunk, whose arrays processors cache, and chunks that threads split at once."""
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
            [*pairs, pack_pair(SUMS, NO_DIGEST.decode())], described, ALIGNMENT, sums_bytes
        )

    def nesting(self, tensor: TensorEntry) -> Nesting | None:
        """The way in which a matrix is split; None if it is not."""
        return None if tensor.name in self._whole else nesting_of(tensor, self._kind)

    def seal(self, draft: Path) -> None:
        """Add checksums of the lower parts, which are complete, and of the draft."""
        sums = []
        with draft.open("rb") as upper, lower_parts(draft).open("r+b") as lower:
            for file in (lower, upper):
                while raw := file.read(CHUNK_BYTES):
                    sums.append(checksums(raw))
            joined = np.concatenate(sums).tobytes()
            lower.write(joined)
            lower.seek(self.model.head.index(NO_DIGEST))
            lower.write(hashlib.sha256(joined).hexdigest().encode())
            lower.flush()
            os.fsync(lower.fileno())


def split(nesting: Nesting, pieces: Iterable[bytes], name: str) -> Iterator[tuple[bytes, bytes]]:
    """The upper and the lower parts of a tensor, of which the `pieces` are whole rows. Raises
    CannotNest."""

    def parts_of(units: np.ndarray) -> tuple[bytes, bytes]:
        if (found := nesting.split(units)) is None:
            raise CannotNest(name)
        return found[0].tobytes(), found[1].tobytes()

    with ThreadPoolExecutor(min(usable_cores(), _AT_ONCE)) as pool:
        for piece in pieces:
            units = np.frombuffer(piece, np.uint8).reshape(-1, nesting.file_bytes)
            chunks = [units[at : at + _CHUNK_UNITS] for at in range(0, len(units), _CHUNK_UNITS)]
            for at in range(0, len(chunks), _AT_ONCE):
                yield from pool.map(parts_of, chunks[at : at + _AT_ONCE])
