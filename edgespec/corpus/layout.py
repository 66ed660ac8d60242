"""The file format of a corpus's index, and the validation of its header.

    header      HEADER
    tokens      all of the text, `token_bytes` each; texts are divided by the largest number
    places      a record for each token that has a next one, in the order of the tokens before it,
                read backwards from it
    directory   the DEPTH tokens before every `stride`-th place, read backwards, big-endian: small
                enough to stay in memory

Neither builds nor searches an index.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgespec.errors import ModelError

DEPTH = 16
"""Tokens by which places are sorted; a longer match predicts no better."""
MOST_DIRECTORY = 4096
"""Most entries of the directory, which a search keeps in memory."""
MAGIC = b"EDGSPCRP"
VERSION = 1
FINGERPRINT_BYTES = 16
MOST_TOKENS = (1 << 32) - 1
"""Most tokens of a corpus: positions have 32 bits."""

_HEADER = struct.Struct(f"<8sHBBIQQQ{FINGERPRINT_BYTES}sI")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class Layout:
    """The header of an index."""

    token_bytes: int
    """Bytes of a token: 2 or 4."""
    n_tokens: int
    n_places: int
    stride: int
    """Number of places from one entry of the directory to the next."""
    fingerprint: str
    """Fingerprint of the vocabulary."""

    @property
    def separator(self) -> int:
        """Number that is larger than all tokens and separates texts, also before the first and
        after the last."""
        return int((1 << (8 * self.token_bytes)) - 1)

    @property
    def place(self) -> np.dtype[np.void]:
        return place_record(self.token_bytes)

    @property
    def key_bytes(self) -> int:
        """Bytes of one entry of the directory."""
        return DEPTH * self.token_bytes

    @property
    def places_at(self) -> int:
        return HEADER_BYTES + self.n_tokens * self.token_bytes

    @property
    def directory_at(self) -> int:
        return self.places_at + self.n_places * self.place.itemsize

    @property
    def n_directory(self) -> int:
        return -(-self.n_places // self.stride)

    @property
    def size_bytes(self) -> int:
        return self.directory_at + self.n_directory * self.key_bytes

    def header(self, directory: bytes) -> bytes:
        zero_checksum = self._pack(0)
        return self._pack(zlib.crc32(directory, zlib.crc32(zero_checksum)))

    def _pack(self, checksum: int) -> bytes:
        return _HEADER.pack(
            MAGIC,
            VERSION,
            DEPTH,
            self.token_bytes,
            0,
            self.n_tokens,
            self.n_places,
            self.stride,
            self.fingerprint.encode("ascii"),
            checksum,
        )


def place_record(token_bytes: int) -> np.dtype[np.void]:
    """Type of a record: the place, the token that follows, and the number of tokens in common with
    the record before it in the file."""
    return np.dtype([("position", "<u4"), ("next", f"<u{token_bytes}"), ("n_common", "u1")])


def token_bytes_for(n_vocab: int) -> int:
    return 2 if n_vocab < 1 << 16 else 4


def parse(header: bytes, size_bytes: int, path: Path) -> Layout:
    """The layout from the header of a file of `size_bytes`. Raises ModelError for another format or
    a damaged file."""
    if len(header) < HEADER_BYTES or header[: len(MAGIC)] != MAGIC:
        raise ModelError(
            f"{path} is no index of a corpus: `edgespec models index FILES OUT` makes one"
        )
    _, version, depth, token_bytes, _, n_tokens, n_places, stride, fingerprint, _ = _HEADER.unpack(
        header
    )
    if version != VERSION or depth != DEPTH:
        raise ModelError(
            f"{path} was made by another version of edgespec (format {version}, this one reads "
            f"{VERSION}): make it again with `edgespec models index`"
        )
    fits = (
        token_bytes in {2, 4}
        and 0 < n_places < n_tokens <= MOST_TOKENS
        and 0 < stride <= n_places
        and -(-n_places // stride) <= 2 * MOST_DIRECTORY
        and fingerprint.isalnum()
    )
    if not fits:
        raise damaged(path, "its header is not valid")
    layout = Layout(token_bytes, n_tokens, n_places, stride, fingerprint.decode("ascii"))
    if layout.size_bytes != size_bytes:
        raise damaged(path, f"it has {size_bytes:,} bytes of {layout.size_bytes:,}")
    return layout


def damaged(path: Path, how: str) -> ModelError:
    return ModelError(f"{path} is damaged, {how}: make it again with `edgespec models index`")
