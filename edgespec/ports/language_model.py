"""The port through which the engine uses a model, and its vocabulary.

Draft and target have the same port: the draft of one pair may be the target of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

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


NO_TREE = TokenTree(0, 1)
"""Tree of a part without nodes."""


class PassPart(NamedTuple):
    """The rows of one slot in a pass: prompt tokens, tree nodes, or both."""

    slot: int
    tree: TokenTree = NO_TREE
    nodes: Sequence[int] = ()
    """Parents come before children. The ancestors of a node are among them, or were evaluated
    earlier and kept."""
    reads: Sequence[int] = ()
    """Prompt tokens between the committed prefix and the root, which the pass commits. With them,
    the root is the only node, if there is one."""

    @property
    def n_rows(self) -> int:
        return len(self.reads) + len(self.nodes)


class LanguageModel(Protocol):
    """A model with `info.n_slots` slots, numbered from 0, for a text each.

    A slot has a committed prefix and provisional tree nodes on top of it. Positions: the tree's
    root is at `committed_of(slot)`, a node `depth` further. Nodes are identified by
    `tree.key[node]`, which survives re-rooting. The logits of a slot do not depend on other slots,
    and a call changes only those that it names. A method that raises leaves their committed
    prefixes unchanged and no provisional nodes.
    """

    info: ModelInfo
    vocabulary: Vocabulary

    @property
    def last_report(self) -> PassReport:
        """Cost of the latest `evaluate`."""

    def committed_of(self, slot: int) -> int:
        """Number of a slot's tokens whose KV entries are final."""

    def evaluate(
        self, parts: Sequence[PassPart], progress: Progress | None = None
    ) -> list[np.ndarray]:
        """Logits after the nodes of each part, float32 [nodes, n_vocab], in one pass.

        The parts are of different slots. The arrays are valid until the next call. The KV of nodes
        is provisional, that of prompt tokens final. A tree may grow while this runs. Limits:
        `info.max_nodes` for the nodes of all parts, `info.max_rows` for nodes and prompt tokens,
        `info.max_branches` for the leaves except the first of each slot. Nodes and prompt tokens
        share a pass only if `info.prompts_share_passes`.

        A single part without nodes is a prompt of any length: it takes passes of up to
        `info.prompt_batch` tokens, which call `progress`. So is a single part whose only node is
        the root, the prompt's last token, if `info.prompts_give_logits`. Raises UsageError past the
        context's end.
        """

    def commit(
        self, tree: TokenTree, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        """Make the KV of `path` final: evaluated nodes, root first, each the parent of the next.

        Evaluated nodes in `keep` below the end of `path` stay provisional; all other provisional KV
        of the slot is dropped.
        """

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        """Shorten the committed prefix to `n_tokens` and drop everything provisional.

        A model that no longer has the recurrent state or the attention window at that position may
        have to drop more: see `committed_of`.
        """

    def share(self, source: int, target: int, n_tokens: int) -> None:
        """Replace the text of slot `target` by the first `n_tokens` of the prefix of `source`.

        They are fewer where `truncate` would drop more. Nothing is computed again.
        """

    def paging(self) -> PagingStats:
        """Totals of the pager; zeros for a resident model."""

    def cancel(self) -> None:
        """Make the running call raise `Cancelled` soon; from any thread. A no-op when idle."""

    def close(self) -> None:
        """Release memory, files and threads. Idempotent."""
