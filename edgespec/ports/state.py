"""Optional port of a model: its committed prefix leaves the process and comes back.

Knows pieces of bytes, not the file that holds them nor their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

Write = Callable[[memoryview], None]
"""Takes the next piece; the caller may reuse its memory afterwards."""


class Read(Protocol):
    """Protocol of a reader that returns the pieces in their order."""

    def size(self) -> int:
        """Bytes of the next piece.

        Raises StateError where there is none, UsageError for more than the memory holds.
        """

    def __call__(self, into: memoryview) -> None:
        """Fill `into` with the next piece. Raises StateError for one of another size."""


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """Everything that KV depends on besides the tokens; a state fits a model with an equal one."""

    files: Sequence[Path]
    """Files of the model's weights."""
    settings: Mapping[str, str]
    """Settings by the words of the command line: the library's version, the context, the cache's
    types."""


@runtime_checkable
class KeepsState(Protocol):
    """Optional protocol of a model: its committed prefix can be kept in a file."""

    @property
    def state_origin(self) -> StateOrigin: ...

    @property
    def state_bytes(self) -> int:
        """Most memory that writing or reading takes besides the cache itself, for now."""

    def write_state(self, write: Write) -> None:
        """Hand over the keys and values of the committed prefix, piece by piece."""

    def read_state(self, n_tokens: int, read: Read) -> None:
        """Replace the committed prefix by the `n_tokens` that were written.

        Raises StateError for pieces that `write_state` of this model cannot have written; nothing
        is committed then.
        """
