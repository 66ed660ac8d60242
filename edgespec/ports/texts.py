"""Optional port of a model that holds several texts and evaluates them in one pass.

For code that handles one text, `TextOf` is a model that holds that text only.
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
    """The rows of one text in a pass: prompt tokens, tree nodes, or both."""

    text: int
    tree: TokenTree
    nodes: Sequence[int]
    reads: Sequence[int] = ()
    """Prompt tokens between the committed prefix and the root, which the pass commits. With them,
    the root is the only node, if there is one."""

    @property
    def n_rows(self) -> int:
        return len(self.reads) + len(self.nodes)


@runtime_checkable
class HoldsTexts(LanguageModel, Protocol):
    """Optional protocol of a model with `info.n_texts` texts, numbered from 0.

    Methods without an argument `text` use text 0. The logits of a text do not depend on the other
    texts, and a call changes only its own text.
    """

    def committed_of(self, text: int) -> int:
        """Number of a text's tokens whose KV entries are final."""

    def prefill(
        self, tokens: Sequence[int], progress: Progress | None = None, text: int = 0
    ) -> None: ...

    def evaluate_together(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        """`prefill` and `evaluate` each of `parts`, which are of different texts, in one pass.

        Limits: `info.max_nodes` for the nodes of all parts, `info.max_rows` for nodes and prompt
        tokens, `info.max_branches` for the leaves except the first of each text. A failure leaves
        no part evaluated or committed.
        """

    def commit(
        self, tree: TokenTree, path: Sequence[int], keep: Sequence[int] = (), text: int = 0
    ) -> None: ...

    def truncate(self, n_tokens: int, text: int = 0) -> None: ...

    def share(self, source: int, target: int, n_tokens: int) -> None:
        """Replace the text `target` by the first `n_tokens` of the committed prefix of `source`.

        They are fewer where `truncate` would drop more. Nothing is computed again.
        """


class TextOf:
    """One of a model's texts as a `LanguageModel`; it does not own the model.

    Each text gets an equal share of the model's branches.
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
        """Do nothing: the model is borrowed."""


def texts_of(model: LanguageModel) -> list[LanguageModel]:
    """The texts of a model as models of their own; a model with one text is returned itself."""
    if model.info.n_texts == 1 or not isinstance(model, HoldsTexts):
        return [model]
    return [*(TextOf(model, text) for text in range(model.info.n_texts))]
