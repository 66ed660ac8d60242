r"""The file format of saved state: header, tokens, pieces of keys and values, and a checksum.

Detects damaged files; the contents of pieces are known to their model alone.

    "edgespec-state 1\n" | length, header as JSON | tokens as int32 | pieces of the target,
    then of the draft: length, bytes; length 0 ends a model's | SHA-256 of all before
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgespec.errors import EdgespecError, StateError
from edgespec.files.regular import open_regular
from edgespec.files.unfinished import unfinished_file

MAGIC = b"edgespec-state 1\n"
MAX_HEADER_BYTES = 1 << 16
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = hashlib.sha256().digest_size
_BLOCK_BYTES = 1 << 18


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelState(_Strict):
    """The model that computed the keys and values, and the number of their tokens."""

    name: str
    fingerprint: str
    settings: Mapping[str, str]
    n_tokens: int = Field(ge=0)
    """Tokens counted from the beginning of the text."""


class Header(_Strict):
    """Header of a state file: its contents, and everything that they depend on."""

    edgespec: str
    """Version of edgespec that wrote the file."""
    processor: str = "that are not on record"
    """Instruction sets of the processor that computed the state."""
    n_tokens: int = Field(ge=1, lt=1 << 31)
    n_tiled: int = Field(default=0, ge=0)
    """Number of those tokens that the target computed in tiles."""
    target: ModelState
    draft: ModelState | None = None


class StateWriter:
    """Writes the header and the pieces of a state file; made by `written`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def begin(self, header: Header, tokens: np.ndarray) -> None:
        """Write the header and the tokens, which precede the pieces."""
        content = header.model_dump_json().encode()
        self._put(MAGIC + _LENGTH.pack(len(content)) + content)
        self._put(np.ascontiguousarray(tokens, "<i4").tobytes())

    def piece(self, content: memoryview) -> None:
        """Write one non-empty piece of a model."""
        self._put(_LENGTH.pack(content.nbytes))
        self._put(content)

    def end_of_model(self) -> None:
        """Mark the end of a model's pieces."""
        self._put(_LENGTH.pack(0))

    def end(self) -> None:
        """Write the checksum, which ends the file."""
        self._file.write(self._digest.digest())

    def _put(self, content: bytes | memoryview) -> None:
        self._digest.update(content)
        self._file.write(content)


@contextmanager
def written(path: Path) -> Iterator[StateWriter]:
    """Yield a writer of the file at `path`, which appears when the block has ended.

    Raises StateError if another kind of file exists there, which is left unchanged, and
    EdgespecError for a full disk.
    """
    check_place(path)
    try:
        with unfinished_file(path, is_private=True) as file:
            yield StateWriter(file)
    except OSError as error:
        raise EdgespecError(f"{path} cannot be written: {error.strerror or error}") from error


def check_place(path: Path) -> bool:
    """True if `path` is a state file, False if it is missing or empty.

    Raises StateError for another kind of file, and if its folder does not exist.
    """
    try:
        if path.stat().st_size == 0 and path.is_file():
            return False
        with open_regular(path) as file:
            magic = file.read(len(MAGIC))
    except FileNotFoundError as error:
        if path.parent.is_dir():
            return False
        raise StateError(f"{path.parent} is no folder: name a file in an existing one") from error
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror or error}") from error
    if magic != MAGIC:
        raise StateError(
            f"{path} is not a state file of this edgespec and was not changed: name another file"
        )
    return True


class StateReader:
    """Reads a state file from beginning to end; made by `opened`."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._left = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
        self._digest = hashlib.sha256()
        self._next: int | None = None
        if self._get(len(MAGIC)) != MAGIC:
            raise self.damaged()
        (length,) = _LENGTH.unpack(self._get(_LENGTH.size))
        if length > MAX_HEADER_BYTES:
            raise self.damaged()
        try:
            self.header = Header.model_validate_json(self._get(length))
        except ValidationError as error:
            raise self.damaged() from error
        self.tokens = np.frombuffer(self._get(4 * self.header.n_tokens), "<i4").astype(np.int64)
        if int(self.tokens.min()) < 0:
            raise self.damaged()

    def check(self) -> None:
        """Read the rest of the file and verify the checksum. Raises StateError if it is wrong.

        Reading the pieces afterwards takes a new reader.
        """
        while self._left:
            self._get(min(self._left, _BLOCK_BYTES))
        self.end()

    def size(self) -> int:
        """Bytes of the model's next piece; 0 after its last one."""
        if self._next is None:
            (self._next,) = _LENGTH.unpack(self._get(_LENGTH.size))
        return self._next

    def piece(self, into: memoryview) -> None:
        """Fill `into` with the next piece. Raises StateError if the sizes differ."""
        length = self.size()
        if not 0 < length == into.nbytes <= self._left:
            raise self.damaged()
        if self._file.readinto(into) != length:  # type: ignore[attr-defined]
            raise self.damaged()
        self._left -= length
        self._digest.update(into)
        self._next = None

    def end_of_model(self) -> None:
        """Read the end mark of a model's pieces. Raises StateError if there are more pieces."""
        if self.size() != 0:
            raise self.damaged()
        self._next = None

    def skip_model(self) -> None:
        """Skip the pieces of a model that is not loaded."""
        while (length := self.size()) > 0:
            while length:
                length -= len(self._get(min(length, _BLOCK_BYTES)))
            self._next = None
        self._next = None

    def end(self) -> None:
        """Verify the checksum at the end. Raises StateError if it is wrong or not at the end."""
        if self._left or self._file.read(_DIGEST_BYTES + 1) != self._digest.digest():
            raise self.damaged()

    def damaged(self) -> StateError:
        return StateError(
            f"{self._path} is damaged or was cut short: delete it, and it will be written again"
        )

    def _get(self, length: int) -> bytes:
        if not 0 <= length <= self._left:
            raise self.damaged()
        content = self._file.read(length)
        if len(content) != length:
            raise self.damaged()
        self._left -= length
        self._digest.update(content)
        return content


@contextmanager
def opened(path: Path) -> Iterator[StateReader]:
    """Yield a reader of the file at `path`. Raises StateError if it is missing or unusable."""
    if not check_place(path):
        raise StateError(f"there is no state file at {path}: save state there first")
    try:
        with open_regular(path) as file:
            yield StateReader(path, file)
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror or error}") from error


def differences(kept: ModelState, now: ModelState) -> str | None:
    """Why a model `now` cannot use the state of `kept`, for messages; None if it can."""
    if kept.fingerprint != now.fingerprint:
        if kept.name == now.name:
            return f"of other weights than those of {now.name}, or of its file before a change"
        return f"of the model {kept.name}, not of {now.name}"
    differing: list[Any] = sorted(
        {*kept.settings.items()} ^ {*now.settings.items()}, key=lambda item: item[0]
    )
    if not differing:
        return None
    name = differing[0][0]
    before, after = (settings.get(name, "none") for settings in (kept.settings, now.settings))
    return f"of {name} {before}, where {after} is used now"
