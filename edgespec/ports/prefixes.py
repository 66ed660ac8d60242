"""Port of a store of prefixes: the KV of texts that were computed before, in blocks of tokens.

Knows slots and tokens, but neither models nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class PrefixPlace(Protocol):
    """One slot's access to a store of prefixes."""

    block_tokens: int
    """Tokens of each block of the target; 1 if prefixes of any length are stored."""

    def begin(self, client: str) -> None:
        """Use the texts of `client` from now on: nobody else's are found, nor kept for others."""

    def n_available(self, text: Sequence[int]) -> int:
        """Number of leading tokens of `text` that `load` can load, a multiple of `block_tokens`."""

    def load(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> int:
        """Append the whole blocks of `text` behind its first `n_held` tokens, a multiple of
        `block_tokens`, to the target; returns how many it holds then, which are fewer if files are
        damaged. `check` is polled and may raise."""

    def load_draft(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> int:
        """`load` of the draft, as far as its blocks are stored."""

    def keep(self, text: Sequence[int], n_tokens: int, n_draft: int) -> bool:
        """Store the next block of the slot's text that is not kept yet; False if there is none.

        The target holds the first `n_tokens` of the text for good, the draft `n_draft`.
        """

    def rewind(self, n_tokens: int) -> None:
        """The slot's text was cut to `n_tokens`."""

    def take_trouble(self) -> str | None:
        """A warning for the user, once; None if all is well."""
