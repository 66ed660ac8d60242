"""Contract tests of runtimes whose models hold several slots; each also keeps that of one slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.errors import UsageError
from edgespec.ports import LanguageModel, PassPart
from one_tree import ROOT, OneTree
from port_calls import evaluate, prefill
from port_contract import TEXT, PortContract
from port_models import clear


class SlotsContract(PortContract):
    """The contract of a model with three slots at least, each for at least 48 tokens, that takes
    eight branches and sixteen nodes a pass."""

    atol_beside: float = 0.0
    """Largest difference of a row among others from the row alone."""

    def check(self, logits: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_allclose(logits, expected, rtol=0, atol=self.atol_beside)

    @pytest.fixture
    def texts(self, model: LanguageModel) -> list[list[int]]:
        """Three texts of twelve tokens."""
        tokens = model.vocabulary.encode(TEXT)
        assert len(tokens) >= 16
        return [(3 * tokens[begin:])[:12] for begin in range(3)]

    def alone(self, model: LanguageModel, tokens: Sequence[int]) -> np.ndarray:
        """Logits after the last of `tokens` in slot 0, with nothing else in the model."""
        clear(model)
        prefill(model, tokens[:-1])
        row: np.ndarray = evaluate(model, OneTree(tokens[-1]), [ROOT])[0]
        model.truncate(0)
        return row

    def test_every_slot_has_a_prefix_of_its_own(
        self, model: LanguageModel, texts: list[list[int]]
    ) -> None:
        for slot, tokens in enumerate(texts):
            prefill(model, tokens[: 3 + slot], slot=slot)
        assert [model.committed_of(slot) for slot in range(3)] == [3, 4, 5]
        model.truncate(1, slot=1)
        assert [model.committed_of(slot) for slot in range(3)] == [3, 1, 5]

    def test_slots_have_the_logits_that_they_have_alone(
        self, model: LanguageModel, texts: list[list[int]]
    ) -> None:
        expected = [self.alone(model, tokens[: 6 + n]) for n, tokens in enumerate(texts)]
        for n, tokens in enumerate(texts):
            prefill(model, tokens[: 5 + n], slot=n)
        parts = [PassPart(n, OneTree(texts[n][5 + n]), [ROOT]) for n in (2, 0, 1)]
        for part, logits in zip(parts, model.evaluate(parts), strict=True):
            self.check(logits[0], expected[part.slot])

    def test_trees_of_several_slots_see_their_own_text_alone(
        self, model: LanguageModel, texts: list[list[int]]
    ) -> None:
        trees = [_fork(tokens[4:7]) for tokens in texts]
        expected = [
            [
                self.alone(model, [*tokens[:4], *tree.token[tree.path(node)].tolist()])
                for node in range(len(tree))
            ]
            for tokens, tree in zip(texts, trees, strict=True)
        ]
        for n, tokens in enumerate(texts):
            prefill(model, tokens[:4], slot=n)
        parts = [PassPart(n, tree, range(len(tree))) for n, tree in enumerate(trees)]
        for rows, logits in zip(expected, model.evaluate(parts), strict=True):
            for row, expected_row in zip(logits, rows, strict=True):
                self.check(row, expected_row)

    def test_prompts_are_read_in_a_pass_of_guesses(
        self, model: LanguageModel, texts: list[list[int]]
    ) -> None:
        """Two prompts in portions, the last of which has the root, too; trees of the third slot
        branch beside them."""
        if not model.info.prompts_share_passes:
            pytest.skip("its prompts have passes of their own")
        expected = [self.alone(model, tokens) for tokens in texts]
        prefill(model, texts[1][:2], slot=1)
        for begin, end, n_held in ((0, 5, 2), (5, 11, 4)):
            tree = OneTree(texts[1][n_held])
            tree.add(ROOT, (texts[1][n_held + 1] + 1) % model.info.n_vocab, 0.9)
            right = tree.add(ROOT, texts[1][n_held + 1], 0.1)
            last = range(end == 11)
            parts = [
                PassPart(0, OneTree(texts[0][end]), last, texts[0][begin:end]),
                PassPart(1, tree, range(len(tree))),
                PassPart(2, OneTree(texts[2][end]), last, texts[2][begin:end]),
            ]
            logits = model.evaluate(parts)
            assert [len(rows) for rows in logits] == [len(last), len(tree), len(last)]
            model.commit(tree, [ROOT, right], slot=1)
            assert [model.committed_of(slot) for slot in range(3)] == [end, n_held + 2, end]
            model.truncate(end, slot=0)
        for part, rows in zip(parts, logits, strict=True):
            if part.slot != 1:
                self.check(rows[0], expected[part.slot])
        prefill(model, texts[1][6:11], slot=1)
        [rows] = model.evaluate([PassPart(1, OneTree(texts[1][11]), [ROOT])])
        self.check(rows[0], expected[1])

    def test_rounds_of_one_slot_leave_the_others_as_they_are(
        self, model: LanguageModel, texts: list[list[int]]
    ) -> None:
        """Rejected guesses of all kinds, commits in any order, and texts that end and begin."""
        expected = [self.alone(model, tokens) for tokens in texts]
        for n, tokens in enumerate(texts):
            prefill(model, tokens[:2], slot=n)
        for position in range(2, 11):
            parts = []
            for n, tokens in enumerate(texts):
                tree = OneTree(tokens[position], first_key=100 * position)
                wrong = tree.add(ROOT, (tokens[position + 1] + 1) % model.info.n_vocab, 0.9)
                tree.add(wrong, tokens[0], 0.9)
                tree.add(ROOT, tokens[position + 1], 0.1)
                parts.append(PassPart(n, tree, range(3 if position % 2 else 4)))
            model.evaluate(parts)
            for n in (position % 3, (position + 1) % 3, (position + 2) % 3):
                model.commit(parts[n].pool, [ROOT], slot=n)
            if position == 5:
                model.truncate(0, slot=1)
                prefill(model, texts[1][:6], slot=1)
        last = [PassPart(n, OneTree(tokens[11]), [ROOT]) for n, tokens in enumerate(texts)]
        for n, logits in enumerate(model.evaluate(last)):
            self.check(logits[0], expected[n])

    def test_many_rounds_in_a_small_cache(
        self, model: LanguageModel, texts: list[list[int]]
    ) -> None:
        """Dropped cells are many more than the cache has."""
        long = [(5 * tokens)[:40] for tokens in texts]
        expected = [self.alone(model, tokens) for tokens in long]
        for position in range(39):
            parts = []
            for n, tokens in enumerate(long):
                tree = OneTree(tokens[position], first_key=100 * position)
                for other in range(3):
                    tree.add(ROOT, (tokens[position + 1] + 1 + other) % model.info.n_vocab, 0.3)
                parts.append(PassPart(n, tree, [0, 1, 2, 3]))
            model.evaluate(parts)
            for n, part in enumerate(parts):
                model.commit(part.pool, [ROOT], slot=n)
        last = [PassPart(n, OneTree(tokens[39]), [ROOT]) for n, tokens in enumerate(long)]
        for n, logits in enumerate(model.evaluate(last)):
            self.check(logits[0], expected[n])

    def test_a_shared_beginning_is_the_same_text(
        self, model: LanguageModel, texts: list[list[int]]
    ) -> None:
        text = [*texts[0][:6], *texts[1][:3]]
        expected = self.alone(model, text)
        prefill(model, texts[0])
        prefill(model, texts[2], slot=2)
        model.share(0, 2, 6)
        model.truncate(3)
        prefill(model, texts[1])
        assert model.committed_of(2) == 6
        prefill(model, text[6:-1], slot=2)
        logits = model.evaluate([PassPart(2, OneTree(text[-1]), [ROOT])])[0]
        self.check(logits[0], expected)

    def test_what_is_refused_leaves_every_slot_as_it_was(
        self, model: LanguageModel, texts: list[list[int]]
    ) -> None:
        expected = [self.alone(model, tokens[:5]) for tokens in texts]
        for n, tokens in enumerate(texts):
            prefill(model, tokens[:4], slot=n)
        tree = OneTree(texts[1][4])
        orphan = tree.add(ROOT, texts[1][5], 0.5)
        parts = [PassPart(0, OneTree(texts[0][4]), [ROOT]), PassPart(1, tree, [orphan])]
        with pytest.raises((UsageError, AssertionError)):
            model.evaluate(parts)
        assert [model.committed_of(slot) for slot in range(3)] == [4, 4, 4]
        parts = [PassPart(n, OneTree(tokens[4]), [ROOT]) for n, tokens in enumerate(texts)]
        for n, logits in enumerate(model.evaluate(parts)):
            self.check(logits[0], expected[n])


def _fork(tokens: Sequence[int]) -> OneTree:
    """A root with two children, of which the less likely one stands first."""
    tree = OneTree(tokens[0])
    tree.add(ROOT, tokens[1], 0.2)
    if tokens[2] != tokens[1]:
        tree.add(ROOT, tokens[2], 0.7)
    return tree
