"""Optional port of a model: saving and loading the KV cache of its committed prefix.

Knows bytes, but neither their meaning nor the file that holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """Everything besides the tokens that KV depends on; a state fits models of equal origin."""

    files: Sequence[Path]
    """The model's weight files."""
    settings: Mapping[str, str]
    """Settings by their names in messages: the library's version, the context size, the cache
    types."""


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
        state has no such parts."""

    def write_block(self, begin: int, slot: int) -> memoryview:
        """The keys and values of the `block_tokens` committed tokens from `begin` on."""

    def read_block(self, content: memoryview, slot: int) -> None:
        """Append a block, whose memory the caller may reuse, to the committed prefix of a slot.

        Raises StateError for content that `write_block` of this model cannot have written, and then
        leaves the prefix as it was.
        """


@runtime_checkable
class KeepsCheckpoints(Protocol):
    """Optional protocol of a model with recurrent state: a text can go on only where all of the
    state was kept. Blocks have what attention layers hold besides, if there are any."""

    @property
    def state_origin(self) -> StateOrigin: ...

    @property
    def needs_checkpoints(self) -> bool:
        """True if blocks alone are no prefix of this model."""

    def checkpoints(self, slot: int) -> Sequence[int]:
        """Lengths of the committed prefixes whose state is kept, ascending."""

    def write_checkpoint(self, n_tokens: int, piece: int, slot: int) -> memoryview | None:
        """A piece of the state after `n_tokens`; None after the last one.

        Piece 0 also has the keys and values behind the last whole block.
        """

    def read_checkpoint(self, n_tokens: int, pieces: Iterator[memoryview], slot: int) -> None:
        """Go on after `n_tokens`, whose whole blocks were read into an empty slot.

        A piece is valid until the next one. Raises StateError for what `write_checkpoint` of this
        model cannot have written; the slot must be emptied then.
        """

    def expect_end(self, n_tokens: int, slot: int) -> None:
        """Also keep the state after `n_tokens` of the next prompt, where earlier texts diverged
        from it, if its rounding allows that."""
