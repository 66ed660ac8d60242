"""A folder of blocks of bytes by name, of bounded size; the least recently used go first.

Damaged blocks are deleted, a full disk ends writing. Knows nothing of what blocks mean.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from edgespec.errors import StateError, UsageError, setting
from edgespec.files import unfinished
from edgespec.files.direct import BLOCK_BYTES, DirectBuffer

SUFFIX = ".edgespec-block"
MAGIC = b"edgespec-block 1"
_HEAD = struct.Struct(f"<{len(MAGIC)}sQ{hashlib.sha256().digest_size}s")
"""Magic, number of bytes, and the checksum of name and contents."""
HEAD_BYTES = 64
"""Offset of the contents."""
MAX_BLOCK_BYTES = 64 << 20
KEPT_SHARE = 0.9
"""Share of the size that is left once the least recently used blocks were deleted."""
AT_ONCE = 4096
"""Most files whose times are in memory while the least recently used are looked for."""


class BlockFolder:
    """Blocks of bytes in a folder, which several processes may share.

    The time of change of a file is the time of its last use.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Create the folder if it is missing. Raises UsageError if it cannot be used."""
        self.folder = folder
        self.max_bytes = max_bytes
        self._buffer = DirectBuffer()
        self.troubles: list[str] = []
        """Warnings that nobody was told."""
        self.tell: Callable[[str], None] = self.troubles.append
        """Called with a warning, once."""
        self.is_writing = True
        """False once the disk was full: blocks are only read from then on."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished.sweep(folder)
            self._make_room(0)
        except OSError as error:
            raise UsageError(
                f"{setting.prompt_cache}: {folder} cannot be used ({error.strerror or error}): "
                "name a folder that can be written"
            ) from error

    def has(self, name: str) -> bool:
        """True if there is a block of this name."""
        return self._path(name).is_file()

    def names(self, end: str) -> list[str]:
        """Names of the blocks whose names end so."""
        return [
            name.removesuffix(SUFFIX) for _, _, name in self._files() if name.endswith(end + SUFFIX)
        ]

    def read(self, name: str) -> memoryview:
        """A block's contents, in memory that the next call reuses.

        Raises StateError if there is none, and for a damaged one, which is deleted.
        """
        content = memoryview(b"")
        with suppress(OSError):
            content = self._buffer.read(self._path(name), MAX_BLOCK_BYTES)
        if len(content) >= HEAD_BYTES:
            magic, n_bytes, checksum = _HEAD.unpack_from(content)
            block = content[HEAD_BYTES : HEAD_BYTES + n_bytes]
            if magic == MAGIC and len(block) == n_bytes and _digest(name, block) == checksum:
                return block
        self.delete(name)
        raise StateError(f"the stored block {name} is missing or damaged")

    def write(self, name: str, block: memoryview) -> None:
        """Store a block, or warn once and end writing if it cannot be stored."""
        n_bytes = HEAD_BYTES + block.nbytes
        size = -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES
        if not self.is_writing or size > min(self.max_bytes, MAX_BLOCK_BYTES):
            return
        buffer = self._buffer.room(size)
        _HEAD.pack_into(buffer, 0, MAGIC, block.nbytes, _digest(name, block))
        buffer[HEAD_BYTES:n_bytes] = block
        try:
            if self.n_bytes + size > self.max_bytes:
                self._make_room(size)
            with unfinished.quick_file(self._path(name)) as create:
                self._buffer.write(create, n_bytes)
            self.n_bytes += size
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self.folder.is_dir():
                return  # another process has swept the part before it was locked
            self.stop(f"{self.folder} cannot be written ({error.strerror or error})")

    def stop(self, why: str) -> None:
        """End writing, with a warning."""
        self.is_writing = False
        self.tell(f"the prompt cache goes on without new texts: {why}")

    def touch(self, names: Sequence[str]) -> None:
        """Mark blocks as used now, later ones of the sequence as a little earlier, so that they are
        deleted before those that they build on."""
        now = time.time_ns()
        for place, name in enumerate(names):
            with suppress(OSError):
                os.utime(self._path(name), ns=(now, now - place * 1000))

    def delete(self, name: str) -> None:
        """Delete a block, if it can be deleted."""
        with suppress(OSError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self.folder / (name + SUFFIX)

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Time of last use, bytes and name of each block."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    with suppress(OSError):  # another process has deleted it
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_mtime_ns, status.st_size, entry.name

    def _make_room(self, n_bytes: int) -> None:
        """Count the bytes of all blocks, and delete the least recently used ones until others of
        `n_bytes` fit."""
        most = int(KEPT_SHARE * self.max_bytes)
        while True:
            self.n_bytes = sum(size for _, size, _ in self._files())
            if self.n_bytes + n_bytes <= self.max_bytes:
                return
            for _, size, name in heapq.nsmallest(AT_ONCE, self._files()):
                if self.n_bytes + n_bytes <= most:
                    return
                (self.folder / name).unlink(missing_ok=True)
                self.n_bytes -= size


def _digest(name: str, block: memoryview) -> bytes:
    """Checksum of a block, which belongs to one name."""
    digest = hashlib.sha256(name.encode())
    digest.update(block)
    return digest.digest()
