"""The port through which the engine uses a model, and its vocabulary.

Draft and target have the same port: the draft of one pair may be the target of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from edgespec.errors import UsageError
from edgespec.tree import TokenTree
from edgespec.values import ModelInfo, PagingStats, PassReport

Progress = Callable[[str, float], None]
"""Called with the name of the current work and the share that is done, 0 to 1."""


class Vocabulary(Protocol):
    """Tokens and text of one model."""

    n_vocab: int
    eog_tokens: frozenset[int]
    """End-of-generation tokens: any of them ends the text."""
    longest_piece_bytes: int
    """Upper bound of the bytes of text of one token."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`, with the model's BOS if it wants one."""

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to the text; control tokens add none.

        Raises UsageError for an id outside the vocabulary, which libraries do not check.
        """


def check_token(token: int, n_vocab: int) -> None:
    """Raise UsageError for an id outside a vocabulary of `n_vocab` tokens."""
    if not 0 <= token < n_vocab:
        raise UsageError(f"token {token} is unknown: tokens are 0 to {n_vocab - 1}")


class LanguageModel(Protocol):
    """A model with a committed prefix and provisional tree nodes on top of it.

    Positions: the tree's root is at `n_committed`, a node at `n_committed + depth`. Nodes are
    identified by `tree.key[node]`, which survives re-rooting. A method that raises leaves the
    committed prefix unchanged and no provisional nodes.
    """

    info: ModelInfo
    vocabulary: Vocabulary

    @property
    def last_report(self) -> PassReport:
        """Cost of the latest `prefill` or `evaluate`."""

    @property
    def n_committed(self) -> int:
        """Tokens whose KV entries are final."""

    def prefill(self, tokens: Sequence[int], progress: Progress | None = None) -> None:
        """Append `tokens` to the committed prefix. Raises UsageError past the context's end."""

    def evaluate(self, tree: TokenTree, nodes: Sequence[int]) -> np.ndarray:
        """Logits after each of `nodes`, float32 [len(nodes), n_vocab]; the caller owns the array.

        Parents come before children. The ancestors of a node are in `nodes`, or were evaluated
        earlier and kept. The KV of the nodes is provisional. `tree` may grow while this runs.
        """

    def commit(self, tree: TokenTree, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Make the KV of `path` final: evaluated nodes, root first, each the parent of the next.

        Evaluated nodes in `keep` below the end of `path` stay provisional; all other provisional KV
        is dropped.
        """

    def truncate(self, n_tokens: int) -> None:
        """Shorten the committed prefix to `n_tokens` and drop everything provisional.

        A model that no longer has the recurrent state or the attention window at that position may
        have to drop more: see `n_committed`.
        """

    def paging(self) -> PagingStats:
        """Totals of the pager; zeros for a resident model."""

    def cancel(self) -> None:
        """Make the running call raise `Cancelled` soon; from any thread. A no-op when idle."""

    def close(self) -> None:
        """Release memory, files and threads. Idempotent."""
