"""Writes the index of a corpus, in constant memory whatever its size.

Tokens are written text by text. Places are distributed to buckets by the tokens before them, and
the buckets are sorted one by one. It knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgespec.corpus.layout import (
    DEPTH,
    HEADER_BYTES,
    MOST_DIRECTORY,
    MOST_TOKENS,
    Layout,
    place_record,
    token_bytes_for,
)
from edgespec.errors import UsageError
from edgespec.files.unfinished import scratch_folder, unfinished_file

BUCKET = 1 << 18
"""Approximate number of places that are sorted at once."""
BLOCK = 1 << 17
"""Tokens that are distributed at once."""
MOST_EQUAL = 64
"""Most places that are kept of those with equal keys, such as a licence's text that is repeated in
each file."""
SAMPLES = 1 << 14
"""Keys that are drawn to choose the borders of buckets."""

ReportShare = Callable[[float], None]
"""Is called with the share of the sorting that is done."""


@dataclass(frozen=True, slots=True)
class Written:
    """Contents of an index that was written."""

    n_texts: int
    n_tokens: int
    n_places: int
    size_bytes: int


def write_index(
    out: Path,
    texts: Iterable[Iterable[Iterable[int]]],
    n_vocab: int,
    fingerprint: str,
    progress: ReportShare = lambda share: None,
) -> Written:
    """Write `out`, whole or not at all, from texts, each an iterable of pieces of tokens.

    Raises UsageError for a corpus without two tokens in a row, or with more than MOST_TOKENS.
    """
    with scratch_folder(out.parent) as folder, unfinished_file(out) as file:
        builder = _IndexBuilder(file, folder, token_bytes_for(n_vocab))
        n_texts = builder.write_texts(texts)
        layout, directory = builder.sort(fingerprint, progress)
        file.seek(0)
        file.write(layout.header(directory))
    return Written(n_texts, layout.n_tokens - DEPTH - n_texts, layout.n_places, layout.size_bytes)


class _IndexBuilder:
    """Builds the index in `file`, with buckets in `folder`."""

    def __init__(self, file: BinaryIO, folder: Path, token_bytes: int) -> None:
        self._file = file
        self._folder = folder
        self._token_bytes = token_bytes
        self._token = np.dtype(f"<u{token_bytes}")
        self._separator = int(np.iinfo(self._token).max)
        self._record = np.dtype(
            [("key", f"S{DEPTH * token_bytes}"), ("position", "<u4"), ("next", self._token)]
        )
        self._n_tokens = 0

    def write_texts(self, texts: Iterable[Iterable[Iterable[int]]]) -> int:
        """Write all tokens after room for the header; returns the number of texts."""
        self._file.write(bytes(HEADER_BYTES))
        self._write_tokens(np.full(DEPTH, self._separator, self._token))
        n_texts = 0
        for text in texts:
            for piece in text:
                self._write_tokens(np.fromiter(piece, self._token))
            self._write_tokens(np.full(1, self._separator, self._token))
            n_texts += 1
        return n_texts

    def sort(self, fingerprint: str, progress: ReportShare) -> tuple[Layout, bytes]:
        """Write the places and their directory after the tokens."""
        splitters = self._splitters()
        n_blocks = -(-self._n_tokens // BLOCK)
        n_steps = n_blocks + len(splitters) + 1
        for n, records in enumerate(self._blocks()):
            progress(n / n_steps)
            self._distribute(records, splitters)
        self._file.seek(0, 2)
        writer = _PlaceWriter(self._file, self._token_bytes)
        for bucket in range(len(splitters) + 1):
            progress((n_blocks + bucket) / n_steps)
            writer.add(self._bucket(bucket))
        if writer.n_places == 0:
            raise UsageError("there is nothing to index: the files hold no two tokens in a row")
        directory = b"".join(writer.directory)
        self._file.write(directory)
        layout = Layout(
            self._token_bytes, self._n_tokens, writer.n_places, writer.stride, fingerprint
        )
        return layout, directory

    def _write_tokens(self, tokens: np.ndarray) -> None:
        self._n_tokens += len(tokens)
        if self._n_tokens > MOST_TOKENS:
            raise UsageError(f"the corpus has more than {MOST_TOKENS:,} tokens: index a part of it")
        self._file.write(tokens.tobytes())

    def _splitters(self) -> np.ndarray:
        """Keys at the borders of buckets, which get about the same size."""
        n_buckets = -(-self._n_tokens // BUCKET)
        if n_buckets == 1:
            return np.empty(0, self._record["key"])
        drawn = np.random.default_rng(0).integers(DEPTH, self._n_tokens - 1, SAMPLES)
        sample = np.concatenate([self._read(int(at), 1)["key"] for at in np.sort(drawn)])
        sample.sort()
        return np.asarray(np.unique(sample[np.arange(1, n_buckets) * len(sample) // n_buckets]))

    def _blocks(self) -> Iterator[np.ndarray]:
        for first in range(DEPTH, self._n_tokens - 1, BLOCK):
            yield self._read(first, min(BLOCK, self._n_tokens - 1 - first))

    def _read(self, first: int, n: int) -> np.ndarray:
        """Records of the `n` places from `first` on, without those at the edge of a text."""
        self._file.seek(HEADER_BYTES + (first - DEPTH + 1) * self._token_bytes)
        read = self._file.read((n + DEPTH) * self._token_bytes)
        tokens = np.frombuffer(read, self._token)
        records = np.empty(n, self._record)
        windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], DEPTH)[:, ::-1]
        keys = np.ascontiguousarray(windows, f">u{self._token_bytes}")
        records["key"] = keys.view(self._record["key"]).reshape(n)
        records["position"] = np.arange(first, first + n)
        records["next"] = tokens[DEPTH:]
        last = tokens[DEPTH - 1 : -1]
        within: np.ndarray = (last != self._separator) & (records["next"] != self._separator)
        kept: np.ndarray = records[within]
        return kept

    def _distribute(self, records: np.ndarray, splitters: np.ndarray) -> None:
        bucket = np.searchsorted(splitters, records["key"], "right")
        order = np.argsort(bucket, kind="stable")
        bounds = np.searchsorted(bucket[order], np.arange(len(splitters) + 2))
        for n, (begin, end) in enumerate(pairwise(bounds.tolist())):
            if end > begin:
                with self._path(n).open("ab") as file:
                    file.write(records[order[begin:end]].tobytes())

    def _bucket(self, n: int) -> np.ndarray:
        """A bucket's records, sorted. It is read piece by piece, each limited to MOST_EQUAL equal
        keys: only a bucket that repeats something is large."""
        kept = np.empty(0, self._record)
        path = self._path(n)
        if not path.exists():
            return kept
        with path.open("rb") as file:
            while read := file.read(2 * BUCKET * self._record.itemsize):
                piece = np.frombuffer(read, self._record)
                kept = _limit_equal(np.concatenate([kept, piece]))
        path.unlink()
        return kept

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket}"


class _PlaceWriter:
    """Writes sorted places, and collects their directory."""

    def __init__(self, file: BinaryIO, token_bytes: int) -> None:
        self._file = file
        self._key = np.dtype(f">u{token_bytes}")
        self._place = place_record(token_bytes)
        self._last = np.full(DEPTH, np.iinfo(self._key).max, self._key)
        self.n_places = 0
        self.stride = 1
        self.directory: list[bytes] = []

    def add(self, records: np.ndarray) -> None:
        if len(records) == 0:
            return
        keys = _tokens_of(records, self._key)
        before = np.concatenate([self._last[None], keys[:-1]])
        places = np.empty(len(records), self._place)
        places["position"], places["next"] = records["position"], records["next"]
        places["n_common"] = np.cumprod(keys == before, axis=1).sum(axis=1)
        self._file.write(places.tobytes())
        first = -self.n_places % self.stride
        self.directory += [key.tobytes() for key in keys[first :: self.stride]]
        self.n_places += len(records)
        self._last = keys[-1]
        while len(self.directory) > MOST_DIRECTORY:
            self.directory = self.directory[::2]
            self.stride *= 2


def _tokens_of(records: np.ndarray, token: np.dtype[np.void]) -> np.ndarray:
    """Keys of the records as tokens, [n, DEPTH]."""
    return np.ascontiguousarray(records["key"]).view(token).reshape(len(records), DEPTH)


def _limit_equal(records: np.ndarray) -> np.ndarray:
    """The records sorted by key, then position, with the first MOST_EQUAL of equal keys."""
    records = records[np.argsort(records["key"], kind="stable")]
    keys = records["key"]
    begins = np.concatenate([[True], keys[1:] != keys[:-1]])
    starts = np.flatnonzero(begins)
    rank = np.arange(len(records)) - starts[np.cumsum(begins) - 1]
    kept: np.ndarray = records[rank < MOST_EQUAL]
    return kept
