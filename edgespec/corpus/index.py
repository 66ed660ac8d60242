"""Searches the index of a corpus for the tokens that followed a text's last tokens in it.

The file is read in small windows, not mapped: a mapping would count as the process's own memory,
sixteen pages for each that is touched. It knows no tree and no model.
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
"""Most memory of an open index: its directory, and the window of one search."""
WINDOW = 32
"""Places that are examined on either side of the position at which the text would be sorted in."""


class Continuation(NamedTuple):
    """A place of the corpus."""

    token: int
    """The token that follows the place."""
    n_common: int
    """Number of tokens before `token` that are equal to the text's last ones."""


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
            with suppress(AttributeError, OSError):  # a hint that some systems do not support
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
        """Number of places."""
        return self._layout.n_places

    def close(self) -> None:
        self._file.close()

    def continuations(self, tokens: Sequence[int]) -> list[Continuation]:
        """Continuations of the places that have most tokens in common with the end of `tokens`, the
        longest match first.

        Raises ModelError for a damaged file.
        """
        key = self._key(tokens)
        if not key:
            return []
        layout = self._layout
        packed = np.asarray(key, f">u{layout.token_bytes}").tobytes()
        slot = max(0, bisect_right(self._directory, packed) - 1)
        first = max(0, slot * layout.stride - WINDOW)
        last = min(layout.n_places, (slot + 1) * layout.stride + WINDOW)
        size = layout.place.itemsize
        read = self._read(layout.places_at + first * size, (last - first) * size)
        places = np.frombuffer(read, layout.place)
        at = self._insertion(places, key)
        return self._around(places, at, key)

    def _key(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The last DEPTH tokens, the last one first; fewer if one is outside the vocabulary."""
        key = []
        for token in reversed(tokens[-DEPTH:]):
            if not 0 <= token < self._layout.separator:
                break
            key.append(token)
        return tuple(key)

    def _insertion(self, places: np.ndarray, key: tuple[int, ...]) -> int:
        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            if self._key_at(places, middle) < key:
                low = middle + 1
            else:
                high = middle
        return low

    def _around(self, places: np.ndarray, at: int, key: tuple[int, ...]) -> list[Continuation]:
        """Continuations of the places on both sides that have a token in common with `key`."""
        found = []
        below, above = (
            range(at - 1, max(-1, at - 1 - WINDOW), -1),
            range(at, min(len(places), at + WINDOW)),
        )
        common, tokens = places["n_common"].tolist(), places["next"].tolist()
        for side in (below, above):
            n_common = DEPTH
            for n, place in enumerate(side):
                if n == 0:
                    n_common = _common(self._key_at(places, place), key)
                else:  # a record says what is common with the one before it in the file
                    n_common = min(n_common, common[max(place, side[n - 1])])
                if n_common == 0:
                    break
                if tokens[place] >= self._n_vocab:
                    raise damaged(self.path, f"it holds a token {tokens[place]}")
                found.append(Continuation(tokens[place], n_common))
        return sorted(found, key=lambda continuation: -continuation.n_common)

    def _key_at(self, places: np.ndarray, place: int) -> tuple[int, ...]:
        """Key of a place: the tokens up to it, the last one first."""
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


def _common(context: Sequence[int], key: Sequence[int]) -> int:
    differing = (n for n, (a, b) in enumerate(zip(context, key, strict=False)) if a != b)
    return next(differing, min(len(context), len(key)))


assert RESIDENT_BYTES > 2 * MOST_DIRECTORY * (4 * DEPTH + 48)
