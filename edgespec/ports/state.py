"""Optional port of a model: its committed prefix leaves the process and comes back.

Knows pieces of bytes; not the file that holds them, and not what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

Write = Callable[[memoryview], None]
"""Takes the next piece, which the caller may use again afterwards."""


class Read(Protocol):
    """Gives the pieces back in their order."""

    def size(self) -> int:
        """Bytes of the next piece.

        Raises StateError where there is none, UsageError for more than the memory holds.
        """

    def __call__(self, into: memoryview) -> None:
        """Fill `into` with the next piece. Raises StateError for one of another size."""


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """Everything that keys and values depend on besides the tokens: a state fits where all of it is
    equal."""

    files: Sequence[Path]
    """Files of the model's weights."""
    settings: Mapping[str, str]
    """Settings by the words of the command line: the library's version, the context, the cache's
    types."""


@runtime_checkable
class KeepsState(Protocol):
    """A model whose committed prefix can be kept in a file."""

    @property
    def state_origin(self) -> StateOrigin: ...

    @property
    def state_bytes(self) -> int:
        """Most memory that writing or reading takes besides the cache itself, for now."""

    def write_state(self, write: Write) -> None:
        """Hand over the keys and values of the committed prefix, piece by piece."""

    def read_state(self, n_tokens: int, read: Read) -> None:
        """Take what was written of `n_tokens` as the committed prefix, in the place of any other.

        Raises StateError for what cannot have been written by `write_state` of this model; nothing
        is committed then.
        """
