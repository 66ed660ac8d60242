"""Searches the index of a corpus: what followed where a text's last tokens occurred in it.

The file is read in small windows, not mapped: pages of a mapping would count as the process's own
memory, sixteen around each that is touched. It knows no tree and no model.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgespec.concurrency.owning import Closeable
from edgespec.corpus.layout import DEPTH, HEADER_BYTES, MOST_DIRECTORY, damaged, parse
from edgespec.errors import ModelError
from edgespec.files.regular import open_regular

RESIDENT_BYTES = 2 << 20
"""Most that an open index takes: its directory, and the window of one search."""
WINDOW = 32
"""Places that are looked at on either side of where the text would stand."""


class Continuation(NamedTuple):
    """A place of the corpus."""

    token: int
    """The token that follows the place."""
    alike: int
    """Tokens before it that are the text's last ones."""


class CorpusIndex(Closeable):
    """An index in a file that stays open. One thread at a time may search it."""

    def __init__(self, path: Path, fingerprint: str, n_vocab: int) -> None:
        """Raises ModelError for a file that is damaged, no index, or of another vocabulary."""
        self.path = path
        self._n_vocab = n_vocab
        try:
            self._file = open_regular(path, buffering=0)
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror or error}") from error
        try:
            with suppress(AttributeError, OSError):  # a hint, which some systems have not
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            size = os.fstat(self._file.fileno()).st_size
            header = self._file.read(HEADER_BYTES) or b""
            self._layout = parse(header, size, path)
            if self._layout.fingerprint != fingerprint:
                raise ModelError(
                    f"{path} was made for another vocabulary (fingerprint "
                    f"{self._layout.fingerprint}, the target's is {fingerprint}): index the corpus "
                    "again with this model"
                )
            directory = self._read(self._layout.directory_at, size - self._layout.directory_at)
            if self._layout.header(directory) != header:
                raise damaged(path, "its checksum is wrong")
        except BaseException:
            self._file.close()
            raise
        key_bytes = self._layout.key_bytes
        self._directory = [
            directory[at : at + key_bytes] for at in range(0, len(directory), key_bytes)
        ]
        self._tokens = struct.Struct(f"<{DEPTH}{'H' if self._layout.token_bytes == 2 else 'I'}")

    def __len__(self) -> int:
        """Places."""
        return self._layout.n_places

    def close(self) -> None:
        self._file.close()

    def continuations(self, words: Sequence[int]) -> list[Continuation]:
        """Continuations of the places that share most of the end of `words`, nearest first.

        Raises ModelError where the file turns out to be damaged.
        """
        wanted = self._key(words)
        if not wanted:
            return []
        layout = self._layout
        packed = np.asarray(wanted, f">u{layout.token_bytes}").tobytes()
        slot = max(0, bisect_right(self._directory, packed) - 1)
        first = max(0, slot * layout.stride - WINDOW)
        last = min(layout.n_places, (slot + 1) * layout.stride + WINDOW)
        size = layout.place.itemsize
        read = self._read(layout.places_at + first * size, (last - first) * size)
        places = np.frombuffer(read, layout.place)
        at = self._insertion(places, wanted)
        return self._around(places, at, wanted)

    def _key(self, words: Sequence[int]) -> tuple[int, ...]:
        """The last words, the last one first."""
        key = []
        for word in reversed(words[-DEPTH:]):
            if not 0 <= word < self._layout.separator:
                break
            key.append(word)
        return tuple(key)

    def _insertion(self, places: np.ndarray, wanted: tuple[int, ...]) -> int:
        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            if self._context(places, middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def _around(self, places: np.ndarray, at: int, wanted: tuple[int, ...]) -> list[Continuation]:
        """The places on both sides, while they have a token in common with `wanted`."""
        found = []
        below, above = (
            range(at - 1, max(-1, at - 1 - WINDOW), -1),
            range(at, min(len(places), at + WINDOW)),
        )
        alikes, tokens = places["alike"].tolist(), places["next"].tolist()
        for side in (below, above):
            alike = DEPTH
            for n, place in enumerate(side):
                if n == 0:
                    alike = _common(self._context(places, place), wanted)
                else:  # to its neighbour, which stands before it or after it in the file
                    alike = min(alike, alikes[max(place, side[n - 1])])
                if alike == 0:
                    break
                if tokens[place] >= self._n_vocab:
                    raise damaged(self.path, f"it holds a token {tokens[place]}")
                found.append(Continuation(tokens[place], alike))
        return sorted(found, key=lambda continuation: -continuation.alike)

    def _context(self, places: np.ndarray, place: int) -> tuple[int, ...]:
        """The tokens up to a place, the last one first."""
        position = int(places["position"][place])
        first = position - DEPTH + 1
        if not 0 <= first < self._layout.n_tokens - DEPTH:
            raise damaged(self.path, f"it points to token {position:,}")
        at = HEADER_BYTES + first * self._layout.token_bytes
        return self._tokens.unpack(self._read(at, self._tokens.size))[::-1]

    def _read(self, at: int, nbytes: int) -> bytes:
        try:
            self._file.seek(at)
            read = self._file.read(nbytes)
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.path} could not be read: {error}") from error
        if read is None or len(read) != nbytes:
            raise damaged(self.path, "it was cut short")
        return read


def _common(context: Sequence[int], wanted: Sequence[int]) -> int:
    differing = (n for n, (a, b) in enumerate(zip(context, wanted, strict=False)) if a != b)
    return next(differing, min(len(context), len(wanted)))


assert RESIDENT_BYTES > 2 * MOST_DIRECTORY * (4 * DEPTH + 48)
