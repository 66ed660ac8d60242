"""Optional port of a model: saving and loading the KV cache of its committed prefix.

Knows pieces of bytes, but neither their meaning nor the file that holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

Write = Callable[[memoryview], None]
"""Stores the next piece; the caller may reuse its memory afterwards."""


class Read(Protocol):
    """Protocol of a reader that returns the pieces in order."""

    def size(self) -> int:
        """Bytes of the next piece.

        Raises StateError if there is none, UsageError if it exceeds the planned memory.
        """

    def __call__(self, into: memoryview) -> None:
        """Fill `into` with the next piece. Raises StateError if the sizes differ."""


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """Everything besides the tokens that KV depends on; a state fits models of equal origin."""

    files: Sequence[Path]
    """The model's weight files."""
    settings: Mapping[str, str]
    """Settings by their names in messages: the library's version, the context size, the cache
    types."""


@runtime_checkable
class KeepsState(Protocol):
    """Optional protocol of a model: the KV of its committed prefix can be saved in a file."""

    @property
    def state_origin(self) -> StateOrigin: ...

    @property
    def state_bytes(self) -> int:
        """Most memory that writing or reading the state takes now, besides the cache itself."""

    def write_state(self, write: Write) -> None:
        """Write the keys and values of the committed prefix, piece by piece."""

    def read_state(self, n_tokens: int, read: Read) -> None:
        """Replace the committed prefix by a saved one of `n_tokens`.

        Raises StateError for pieces that `write_state` of this model cannot have written, and then
        leaves nothing committed.
        """


@runtime_checkable
class KeepsBlocks(Protocol):
    """Optional protocol of a model: the KV of blocks of a text's tokens can be saved one by one.

    A block depends on all tokens up to its end, and on nothing else.
    """

    @property
    def state_origin(self) -> StateOrigin: ...

    @property
    def block_tokens(self) -> int:
        """Number of tokens of each block, with about 1 MiB of keys and values; 0 if this model's
        state has no parts."""

    def write_block(self, begin: int, slot: int) -> memoryview:
        """The keys and values of the `block_tokens` committed tokens from `begin` on."""

    def read_block(self, content: memoryview, slot: int) -> None:
        """Append a block, whose memory the caller may reuse, to the committed prefix of a slot.

        Raises StateError for content that `write_block` of this model cannot have written, and then
        leaves the prefix as it was.
        """
