"""Optional port of a model: several texts at once, and passes that serve all of them.

Each text is a model of its own to whoever works on it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from edgespec.ports.language_model import LanguageModel, Progress
from edgespec.tree import TokenTree
from edgespec.values import ModelInfo, PagingStats, PassReport


class PassPart(NamedTuple):
    """The rows of one text in a pass: tokens of a prompt, nodes of a tree, or both."""

    text: int
    tree: TokenTree
    nodes: Sequence[int]
    reads: Sequence[int] = ()
    """Tokens between the committed prefix and the root, which is then the only node, if there is
    one. A pass that succeeds commits them."""

    @property
    def n_rows(self) -> int:
        return len(self.reads) + len(self.nodes)


@runtime_checkable
class HoldsTexts(LanguageModel, Protocol):
    """Optional protocol of a model with `info.n_texts` texts, which are numbered from 0.

    Methods without a text are about text 0. A text's logits are those that it has alone, whatever
    the others do, and no call changes another text than its own.
    """

    def committed_of(self, text: int) -> int:
        """Tokens of a text whose KV entries are final."""

    def prefill(
        self, tokens: Sequence[int], progress: Progress | None = None, text: int = 0
    ) -> None: ...

    def evaluate_together(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        """Do as `prefill` and `evaluate` for each of `parts`, of different texts, in one pass.

        `info.max_nodes` counts the nodes of all parts, `info.max_rows` their tokens of prompts,
        too, and `info.max_branches` their leaves but for the first one of each text. A failure
        leaves nothing of theirs behind.
        """

    def commit(
        self, tree: TokenTree, path: Sequence[int], keep: Sequence[int] = (), text: int = 0
    ) -> None: ...

    def truncate(self, n_tokens: int, text: int = 0) -> None: ...

    def share(self, source: int, target: int, n_tokens: int) -> None:
        """Replace the text `target` by the first `n_tokens` of the committed prefix of `source`, or
        by fewer where `truncate` would forget more. Nothing is computed again."""


class TextOf:
    """One of a model's texts; implements `LanguageModel`. The model is borrowed.

    It has an equal share of the branches, so that whoever works on it need not know the others.
    """

    def __init__(self, model: HoldsTexts, text: int) -> None:
        self.model = model
        self.text = text
        n_branches = 1 + (model.info.max_branches - 1) // model.info.n_texts
        self.info: ModelInfo = replace(model.info, max_branches=n_branches)
        self.vocabulary = model.vocabulary

    @property
    def last_report(self) -> PassReport:
        """Cost of the model's latest pass."""
        return self.model.last_report

    @property
    def n_committed(self) -> int:
        return self.model.committed_of(self.text)

    def prefill(self, tokens: Sequence[int], progress: Progress | None = None) -> None:
        self.model.prefill(tokens, progress, text=self.text)

    def evaluate(self, tree: TokenTree, nodes: Sequence[int]) -> np.ndarray:
        return self.model.evaluate_together([PassPart(self.text, tree, nodes)])[0]

    def commit(self, tree: TokenTree, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        self.model.commit(tree, path, keep, text=self.text)

    def truncate(self, n_tokens: int) -> None:
        self.model.truncate(n_tokens, text=self.text)

    def paging(self) -> PagingStats:
        return self.model.paging()

    def cancel(self) -> None:
        self.model.cancel()

    def close(self) -> None:
        """The model is not its own."""


def texts_of(model: LanguageModel) -> list[LanguageModel]:
    """The texts of a model, each as a model of its own; a single one is the model itself."""
    if model.info.n_texts == 1 or not isinstance(model, HoldsTexts):
        return [model]
    return [*(TextOf(model, text) for text in range(model.info.n_texts))]
