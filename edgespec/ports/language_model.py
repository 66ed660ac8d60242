"""The port through which a model is used, its vocabulary, and templates from its files.

Draft and target have the same port: the draft of one pair may be the target of another. What only
some models can do has a default that says no.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgespec.errors import ModelError, UsageError, setting
from edgespec.pool import Pool
from edgespec.values import ModelInfo, PagingStats, PassReport

Progress = Callable[[str, float], None]
"""Called with the name of the current work and the share that is done, 0 to 1."""
Take = Callable[[int, np.ndarray], None]
"""Receives features of consecutive tokens: the position of the first token, and float32
[tokens, layers, values]. The array is valid only during the call."""
DEFAULT, FOR_TOOLS = "default", "tool_use"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Templates by name, usually only DEFAULT, and special tokens by their names in templates."""

    templates: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Text by name: `bos_token`, `eos_token` and so on."""
    control_tokens: frozenset[str] = frozenset()
    """Strings that are always tokenized as control tokens, or that end a text."""
    added_tokens: frozenset[str] = frozenset()
    """Strings that are always tokenized as one token, which is no control token."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings recommended by the model's authors, by fields of `SamplingParams`; not
    validated."""

    def source(self, model: str, with_tools: bool = False) -> str:
        """The template for a conversation. Raises ModelError if the model has none."""
        if with_tools and FOR_TOOLS in self.templates:
            return self.templates[FOR_TOOLS]
        if DEFAULT in self.templates:
            return self.templates[DEFAULT]
        raise ModelError(
            f"{model} has no chat template by default: it continues text and was not trained to "
            f"converse; use `edgespec generate`, or give one with {setting.use_chat_template}"
        )


class Vocabulary(ABC):
    """Tokens and text of one model."""

    n_vocab: int
    eog_tokens: frozenset[int]
    """End-of-generation tokens: any of them ends the text."""
    longest_piece_bytes: int
    """Upper bound of the bytes of text of one token."""
    chat_format: ChatFormat = ChatFormat()
    """Chat templates and special tokens in the model's files."""

    @abstractmethod
    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`, with the model's BOS if it wants one."""

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to the text; control tokens add none.

        Raises UsageError for an id outside the vocabulary, which libraries do not check.
        """


def unknown_token(token: int, n_vocab: int) -> UsageError:
    """The error for an id outside a vocabulary of `n_vocab` tokens."""
    return UsageError(f"token {token} is unknown: tokens are 0 to {n_vocab - 1}")


class PassPart(NamedTuple):
    """The rows of one slot in a pass: prompt tokens, tree nodes, or both."""

    slot: int
    pool: Pool = Pool(1)
    """The default is for a part without nodes."""
    nodes: Sequence[int] = ()
    """Parents come before children. The ancestors of a node are among them, or were evaluated
    earlier and kept."""
    reads: Sequence[int] = ()
    """Prompt tokens between the committed prefix and the root, which the pass commits. With them,
    the root is the only node, if there is one."""
    by_row: bool = False
    """True if the prompt tokens are to round as nodes do, however many they are."""

    @property
    def n_rows(self) -> int:
        return len(self.reads) + len(self.nodes)


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """Everything besides the tokens that saved KV depends on: it fits models of equal origin."""

    files: Sequence[Path]
    """The model's weight files."""
    settings: Mapping[str, str]
    """The library's version, the context size, the cache types and so on, by name."""


class ModelPort(ABC):
    """A loaded model, which one thread uses at a time."""

    info: ModelInfo
    vocabulary: Vocabulary

    def paging(self) -> PagingStats:
        """Totals of the pager; zeros for a resident model."""
        return PagingStats()

    @abstractmethod
    def cancel(self) -> None:
        """Make the running call raise `Cancelled` soon; from any thread. A no-op when idle."""

    @abstractmethod
    def close(self) -> None:
        """Release memory, files and threads. Idempotent."""


class EmbeddingModel(ModelPort):
    """A model that turns texts into vectors."""

    n_values: int
    """Length of a vector."""

    @abstractmethod
    def embed(self, tokens: Sequence[int]) -> np.ndarray:
        """The vector of a text, float32 [n_values], pooled as the model's file says.

        It depends on the tokens alone. Raises ContextOverflow, WeightReadError and Cancelled.
        """


class LanguageModel(ModelPort):
    """A model with `info.n_slots` slots, numbered from 0, for a text each.

    A slot has a committed prefix and provisional tree nodes on top of it. Positions: the tree's
    root is at `committed_of(slot)`, a node `depth` further. Nodes are identified by
    `pool.key[node]`, which stays when the pool is packed. The logits of a slot do not depend on
    other slots, and a call changes only those that it names. A method that raises leaves their
    committed prefixes unchanged, but for passes over a prompt, and no provisional nodes.
    """

    last_report: PassReport
    """Cost of the latest `evaluate`."""

    @abstractmethod
    def committed_of(self, slot: int) -> int:
        """Number of a slot's tokens whose KV entries are final."""

    @abstractmethod
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
        the root, the prompt's last token, if `info.prompts_give_logits`. If one of them raises,
        those before it stay committed. Raises UsageError past the context's end.
        """

    @abstractmethod
    def commit(
        self, pool: Pool, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        """Make the KV of `path` final: evaluated nodes, root first, each the parent of the next.

        Evaluated nodes in `keep` below the end of `path` stay provisional; all other provisional KV
        of the slot is dropped.
        """

    @abstractmethod
    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        """Shorten the committed prefix to `n_tokens` and drop everything provisional.

        A model that no longer has the recurrent state or the attention window at that position may
        have to drop more: see `committed_of`.
        """

    @abstractmethod
    def share(self, source: int, target: int, n_tokens: int) -> None:
        """Replace the text of slot `target` by the first `n_tokens` of the prefix of `source`.

        They are fewer where `truncate` would drop more. Nothing is computed again.
        """

    # what only some models can do

    token_ids: np.ndarray | None = None
    """Token of each column of the logits, ascending, of a draft that rates only some of the
    target's tokens (FR-Spec, arXiv 2502.14856); None: all, in their order."""

    def borrow_from(self, target: LanguageModel) -> None:
        """Compute with the weights that the plan has a draft share with its target (SubSpec, arXiv
        2509.18344). They must stay pinned, and the target open. Called before the first pass."""

    def take_prefix(self, n_tokens: int, slot: int) -> None:
        """Commit more of its target's first `n_tokens` in this slot, by their keys and values."""
        raise NotImplementedError

    def divide(self, plan: Any) -> threading.Event:
        """Divide the memory of weights by another `MemoryPlan`, if `info.adjusts`; from any thread.

        It holds from the next pass or `settle` on; the event tells that the memory is at most that
        of the plan. What is missing is pinned before the pass that follows.
        """
        raise NotImplementedError

    def settle(self) -> None:
        """Take a step towards the division that was asked for; called between passes. Raises
        WeightReadError."""

    # features, the inputs of some of a target's layers at committed tokens, which a head reads

    def give_features(self, layers: Sequence[int], take: Take) -> None:
        """Start calling `take` with the inputs of `layers` for each token committed to slot 0, if
        `info.gives_features`.

        `evaluate` does so after each pass over a prompt, and `commit`. Features do not depend on
        the batch in which a token was computed. Tokens committed by loading a saved state or by
        sharing another slot's prefix have none. Raises UsageError for layers that the model was not
        loaded to give.
        """
        raise UsageError(f"{self.info.name} does not give the inputs of its layers")

    def take_features(self, position: int, rows: np.ndarray) -> None:
        """Store the features of committed tokens; implements `Take` for a head.

        A head (`info.reads_features`) reads a token together with the features of the token before
        it: the target's if they are known, otherwise those that the head itself predicted there.
        The first token of a text has no features before it and is read only as a part of a prompt.

        A head that guesses blocks (`info.block_guesses`) reads a token with its own features. What
        it predicts after a node depends only on the node's depth, and on its token if
        `info.is_chained`; `evaluate` takes one pass in all for one text and root.
        """
        raise NotImplementedError

    def drop_features(self, n_tokens: int) -> None:
        """Drop the features of all tokens after the text's first `n_tokens`."""

    def lacks_features(self, n_tokens: int) -> bool:
        """True if features are missing that reading the first `n_tokens` or what follows needs."""
        return False

    # the KV of texts, which can be stored: in blocks of `info.block_tokens`, by checkpoints

    state_origin: StateOrigin | None = None
    """None: nothing can be stored."""

    def write_block(self, begin: int, slot: int) -> memoryview:
        """The keys and values of the block of committed tokens from `begin` on."""
        raise NotImplementedError

    def read_block(self, content: memoryview, slot: int) -> None:
        """Append a block, whose memory the caller may reuse, to the committed prefix of a slot.

        Raises StateError for content that `write_block` of this model cannot have written, and then
        leaves the prefix as it was.
        """
        raise NotImplementedError

    def checkpoints(self, slot: int) -> Sequence[int]:
        """Lengths of the committed prefixes whose state is kept, ascending."""
        return ()

    def write_checkpoint(self, n_tokens: int, slot: int) -> Sequence[memoryview]:
        """The pieces of the state after `n_tokens`, and at last one with the keys and values behind
        the last whole block, which is read first."""
        raise NotImplementedError

    def read_checkpoint(self, n_tokens: int, pieces: Iterator[memoryview], slot: int) -> None:
        """Go on after `n_tokens`, whose whole blocks were read into an empty slot.

        A piece is valid until the next one. Raises StateError for what `write_checkpoint` of this
        model cannot have written; the slot must be emptied then.
        """
        raise NotImplementedError

    def expect_end(self, n_tokens: int, slot: int) -> None:
        """Also keep the state after `n_tokens` of the next prompt, where earlier texts diverged
        from it, if its rounding allows that."""
