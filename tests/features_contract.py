"""Contract tests of models that give features, behind `edgespec.ports`.

A suite inherits from `FeaturesContract` and defines the fixture `model_factory`, as for
`PortContract`; `layers` are some whose inputs the model gives. The model's context must hold at
least 48 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.errors import UsageError
from edgespec.ports import LanguageModel, PassPart
from one_tree import ROOT, OneTree
from port_calls import evaluate, prefill
from port_models import OpensModels

TOKENS = tuple((7 * n * n + 3 * n + 1) % 40 for n in range(24))


class Received:
    """Features in the order in which they came; implements `edgespec.ports.Take`."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self._rows: list[np.ndarray] = []

    def __call__(self, position: int, rows: np.ndarray) -> None:
        self.positions += range(position, position + len(rows))
        self._rows.extend(rows.copy())

    @property
    def rows(self) -> np.ndarray:
        return np.stack(self._rows)


def logits_of_a_tree(model: Any, layers: Sequence[int]) -> np.ndarray:
    """Logits of a root and its child, float32 [2, n_vocab], while features of `layers` are given;
    none are if there are no layers."""
    if layers:
        model.give_features(layers, Received())
    prefill(model, TOKENS[:11])
    tree = OneTree(TOKENS[11])
    tree.add(ROOT, TOKENS[12], 0.5)
    rows: np.ndarray = evaluate(model, tree, [0, 1])
    return rows


class FeaturesContract(OpensModels):
    layers: Sequence[int] = ()
    atol: float = 0.0
    """Largest difference of features when the same tokens are batched in another way."""

    @pytest.fixture
    def received(self, model: LanguageModel) -> Received:
        """Features that the model gives."""
        received = Received()
        model.give_features(self.layers, received)
        return received

    def one_by_one(self, model: LanguageModel, tokens: Sequence[int]) -> np.ndarray:
        """Features of `tokens`, each computed alone from an empty cache, which is left empty."""
        received = Received()
        model.give_features(self.layers, received)
        model.truncate(0)
        for token in tokens:
            tree = OneTree(token)
            evaluate(model, tree, [ROOT])
            model.commit(tree, [ROOT])
        model.truncate(0)
        return received.rows

    def same(self, one: np.ndarray, other: np.ndarray) -> bool:
        return one.shape == other.shape and np.allclose(one, other, rtol=0.0, atol=self.atol)

    def test_a_prompt_gives_a_row_for_each_token(
        self, model: LanguageModel, received: Received
    ) -> None:
        prefill(model, TOKENS[:9])
        prefill(model, TOKENS[9:])
        assert received.positions == list(range(len(TOKENS)))
        assert received.rows.shape[:2] == (len(TOKENS), len(self.layers))
        assert received.rows.dtype == np.float32

    def test_a_prompt_gives_what_its_tokens_give_alone(self, model: LanguageModel) -> None:
        expected = self.one_by_one(model, TOKENS)
        received = Received()
        model.give_features(self.layers, received)
        prefill(model, TOKENS)
        assert self.same(received.rows, expected)

    def test_a_committed_path_gives_what_its_tokens_give_alone(self, model: LanguageModel) -> None:
        expected = self.one_by_one(model, TOKENS[:8])
        received = Received()
        model.give_features(self.layers, received)
        prefill(model, TOKENS[:5])
        tree = OneTree(TOKENS[5])
        tree.add(ROOT, TOKENS[10], 0.5)
        right = tree.add(ROOT, TOKENS[6], 0.4)
        tree.add(right, TOKENS[11], 0.3)
        end = tree.add(right, TOKENS[7], 0.2)
        evaluate(model, tree, range(len(tree)))
        model.commit(tree, [ROOT, right, end])
        assert received.positions == list(range(8))
        assert self.same(received.rows, expected)

    def test_a_prompt_that_shares_a_pass_gives_its_rows(self, model: LanguageModel) -> None:
        expected = self.one_by_one(model, TOKENS[:6])
        received = Received()
        model.give_features(self.layers, received)
        if not (model.info.prompts_share_passes or model.info.prompts_give_logits):
            pytest.skip("the model reads prompts in passes of their own")
        prefill(model, TOKENS[:2])
        tree = OneTree(TOKENS[5])
        model.evaluate([PassPart(0, tree, [ROOT], TOKENS[2:5])])
        assert received.positions == [0, 1, 2, 3, 4]
        model.commit(tree, [ROOT])
        assert received.positions == [0, 1, 2, 3, 4, 5]
        assert self.same(received.rows, expected)

    def test_nothing_is_given_before_it_is_committed(
        self, model: LanguageModel, received: Received
    ) -> None:
        prefill(model, TOKENS[:3])
        evaluate(model, OneTree(TOKENS[3]), [ROOT])
        model.truncate(3)
        assert received.positions == [0, 1, 2]

    def test_kept_nodes_give_theirs_when_they_are_committed(self, model: LanguageModel) -> None:
        expected = self.one_by_one(model, TOKENS[:3])
        received = Received()
        model.give_features(self.layers, received)
        tree = OneTree(TOKENS[0])
        child = tree.add(ROOT, TOKENS[1], 0.5)
        grandchild = tree.add(child, TOKENS[2], 0.5)
        evaluate(model, tree, [ROOT, child, grandchild])
        model.commit(tree, [ROOT], keep=[child, grandchild])
        assert received.positions == [0]
        tree = tree.reroot(child)
        model.commit(tree, [ROOT, 1])
        assert received.positions == [0, 1, 2]
        assert self.same(received.rows, expected)

    def test_a_shortened_text_goes_on_where_it_was_cut(self, model: LanguageModel) -> None:
        expected = self.one_by_one(model, [*TOKENS[:4], *TOKENS[12:15]])
        received = Received()
        model.give_features(self.layers, received)
        prefill(model, TOKENS[:9])
        model.truncate(4)
        prefill(model, TOKENS[12:15])
        assert received.positions[9:] == [4, 5, 6]
        assert self.same(received.rows[9:], expected[4:])

    def test_the_logits_are_those_of_a_model_that_nobody_asks(
        self, model: LanguageModel, received: Received
    ) -> None:
        model.give_features(self.layers, lambda position, rows: None)  # type: ignore[attr-defined]
        prefill(model, TOKENS[:5])
        one = evaluate(model, OneTree(TOKENS[5]), [ROOT])
        model.truncate(0)
        model.give_features(self.layers, received)  # type: ignore[attr-defined]
        prefill(model, TOKENS[:5])
        assert np.array_equal(evaluate(model, OneTree(TOKENS[5]), [ROOT]), one)

    def test_layers_that_the_model_does_not_show_are_refused(self, model: LanguageModel) -> None:
        with pytest.raises(UsageError):
            model.give_features([4096], Received())
