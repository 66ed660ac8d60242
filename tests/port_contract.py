"""Contract tests of runtimes behind `edgespec.ports.LanguageModel`.

A runtime's test module defines a class:

    class TestFakeModelKeepsTheContract(PortContract):
        @pytest.fixture
        def model_factory(self): return lambda: FakeModel(...)

The factory opens a fresh model, which the suite closes; successive tests share one model. The
context must hold at least 48 tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from edgespec.errors import Cancelled, UsageError
from edgespec.ports import LanguageModel
from edgespec.tree import ROOT, TokenTree
from edgespec.values import PagingStats

TEXT = "Once there were two wolves, and the younger one asked: who told you that the moon is old?"


class PortContract:
    atol: float = 0.0
    """Largest difference of logits when the same tokens are batched in another way."""

    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        raise NotImplementedError("a runtime's test class says how to open its model")

    @pytest.fixture(scope="class")
    @classmethod
    def kept_open(cls) -> Iterator[dict[str, LanguageModel]]:
        """Open models by the parameters of their factory."""
        models: dict[str, LanguageModel] = {}
        yield models
        for model in models.values():
            model.close()

    @pytest.fixture
    def model(
        self,
        request: pytest.FixtureRequest,
        kept_open: dict[str, LanguageModel],
        model_factory: Callable[[], LanguageModel],
    ) -> LanguageModel:
        """A model with an empty KV cache. It is opened once, since most tests are shorter than
        opening."""
        kind = repr(getattr(request.node, "callspec", None) and request.node.callspec.params)
        if kind not in kept_open:
            kept_open[kind] = model_factory()
        kept_open[kind].truncate(0)
        return kept_open[kind]

    @pytest.fixture
    def tokens(self, model: LanguageModel) -> list[int]:
        """The first sixteen tokens of TEXT."""
        tokens = model.vocabulary.encode(TEXT)[:16]
        assert len(tokens) == 16
        return tokens

    def same(self, one: np.ndarray, other: np.ndarray) -> bool:
        return bool(np.allclose(one, other, rtol=0.0, atol=self.atol))

    def after(self, model: LanguageModel, tokens: Sequence[int]) -> np.ndarray:
        """Reference logits after `tokens`, each evaluated alone, from an empty KV cache."""
        model.truncate(0)
        for token in tokens:
            tree = TokenTree(token)
            logits = model.evaluate(tree, [ROOT])
            model.commit(tree, [ROOT])
        model.truncate(0)
        row: np.ndarray = logits[0]
        return row

    # The vocabulary

    def test_a_number_that_is_no_token_is_refused(self, model: LanguageModel) -> None:
        vocabulary = model.vocabulary
        for token in (-1, vocabulary.n_vocab, 1 << 31, 1 << 80):
            with pytest.raises(UsageError, match="is unknown"):
                vocabulary.piece(token)

    def test_no_token_is_longer_than_the_longest(self, model: LanguageModel) -> None:
        vocabulary = model.vocabulary
        pieces = map(vocabulary.piece, range(vocabulary.n_vocab))
        assert max(map(len, pieces)) <= vocabulary.longest_piece_bytes

    # The committed prefix

    def test_a_fresh_model_has_committed_nothing(
        self, model_factory: Callable[[], LanguageModel]
    ) -> None:
        model = model_factory()
        try:
            assert model.n_committed == 0
        finally:
            model.close()

    def test_prefill_appends_to_the_prefix(self, model: LanguageModel, tokens: list[int]) -> None:
        model.prefill(tokens[:5])
        model.prefill(tokens[5:8])
        assert model.n_committed == 8

    def test_prefilled_tokens_are_the_context_of_what_follows(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        expected = self.after(model, tokens[:8])
        model.prefill(tokens[:7])
        assert self.same(model.evaluate(TokenTree(tokens[7]), [ROOT])[0], expected)

    def test_prefill_reports_progress_up_to_the_whole(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        shares: list[float] = []
        model.prefill(tokens, progress=lambda what, share: shares.append(share))
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1.0)

    def test_prefill_past_the_context_is_refused_and_changes_nothing(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        model.prefill(tokens[:4])
        with pytest.raises(UsageError):
            model.prefill(tokens[:1] * model.info.n_ctx)
        assert model.n_committed == 4

    def test_truncate_leaves_a_prefix_that_can_be_continued(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        expected = self.after(model, [*tokens[:4], tokens[12]])
        model.prefill(tokens)
        model.truncate(4)
        assert model.n_committed == 4
        assert self.same(model.evaluate(TokenTree(tokens[12]), [ROOT])[0], expected)

    def test_truncate_drops_provisional_nodes(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        expected = self.after(model, [*tokens[:4], tokens[9]])
        model.prefill(tokens[:4])
        model.evaluate(TokenTree(tokens[4]), [ROOT])
        model.truncate(4)
        assert self.same(model.evaluate(TokenTree(tokens[9]), [ROOT])[0], expected)

    # Logits of a tree

    def test_logits_are_float32_of_a_row_per_node(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree = TokenTree(tokens[0])
        tree.add(ROOT, tokens[1], 0.5)
        logits = model.evaluate(tree, [0, 1])
        assert logits.dtype == np.float32
        assert logits.shape == (2, model.info.n_vocab)

    def test_logits_belong_to_the_caller(self, model: LanguageModel, tokens: list[int]) -> None:
        tree = TokenTree(tokens[0])
        tree.add(ROOT, tokens[1], 0.5)
        first = model.evaluate(tree, [0])
        before = first.copy()
        model.evaluate(tree, [1])
        assert np.array_equal(first, before)

    def test_every_node_sees_its_own_branch_and_no_other(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, branches = _wide_tree(tokens)
        expected = [self.after(model, [*tokens[:4], *branch]) for branch in branches]
        model.prefill(tokens[:4])
        logits = model.evaluate(tree, range(len(tree)))
        for node, row in enumerate(expected):
            assert self.same(logits[node], row), f"node {node}"

    def test_a_tree_may_be_evaluated_in_parts(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, branches = _wide_tree(tokens)
        expected = [self.after(model, [*tokens[:4], *branch]) for branch in branches]
        model.prefill(tokens[:4])
        model.evaluate(tree, [0, 2])
        logits = model.evaluate(tree, [1, 5, 3])
        for row, node in zip(logits, (1, 5, 3), strict=True):
            assert self.same(row, expected[node]), f"node {node}"

    def test_evaluating_commits_nothing(self, model: LanguageModel, tokens: list[int]) -> None:
        model.prefill(tokens[:4])
        model.evaluate(TokenTree(tokens[4]), [ROOT])
        assert model.n_committed == 4

    def test_a_tree_may_grow_while_it_is_evaluated(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, branches = _wide_tree(tokens)
        nodes = list(range(len(tree)))
        expected = self.after(model, [*tokens[:4], *branches[-1]])
        model.prefill(tokens[:4])
        done = threading.Event()

        def grow() -> None:
            node = nodes[-1]
            while not tree.is_full and not done.is_set():
                node = tree.add(node, tokens[0], 0.5)

        grower = threading.Thread(target=grow)
        grower.start()
        try:
            logits = model.evaluate(tree, nodes)
        finally:
            done.set()
            grower.join()
        assert self.same(logits[-1], expected)

    # Provisional KV is a transaction

    def test_a_committed_path_is_the_context_of_the_next_tree(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, branches = _wide_tree(tokens)
        expected = self.after(model, [*tokens[:4], *branches[4], tokens[13]])
        model.prefill(tokens[:4])
        model.evaluate(tree, range(len(tree)))
        model.commit(tree, tree.path(4))
        assert model.n_committed == 4 + len(tree.path(4))
        assert self.same(model.evaluate(TokenTree(tokens[13]), [ROOT])[0], expected)

    def test_kept_nodes_are_the_context_of_their_children(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, branches = _wide_tree(tokens)
        expected = self.after(model, [*tokens[:4], *branches[4], tokens[14]])
        model.prefill(tokens[:4])
        model.evaluate(tree, range(len(tree)))
        keep = tree.subtree(1)
        model.commit(tree, [ROOT], keep)
        tree = tree.reroot(1)
        below = next(node for node in range(len(tree)) if tree.token[node] == branches[4][-1])
        new = tree.add(below, tokens[14], 0.5)
        assert self.same(model.evaluate(tree, [new])[0], expected)

    def test_kept_nodes_can_be_committed_later(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, branches = _wide_tree(tokens)
        expected = self.after(model, [*tokens[:4], *branches[4], tokens[14]])
        model.prefill(tokens[:4])
        model.evaluate(tree, range(len(tree)))
        model.commit(tree, [ROOT], tree.subtree(1))
        tree = tree.reroot(1)
        below = next(node for node in range(len(tree)) if tree.token[node] == branches[4][-1])
        model.commit(tree, tree.path(below))
        assert self.same(model.evaluate(TokenTree(tokens[14]), [ROOT])[0], expected)

    def test_twenty_rounds_leave_the_cache_as_if_read_in_one_go(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        """Dropped nodes leave no cells behind and hide none that stay."""
        text = (tokens * 3)[:41]
        expected = self.after(model, text)
        tree = TokenTree(text[0])
        for position in range(0, len(text) - 2, 2):
            right = tree.add(ROOT, text[position + 1], 0.5)
            wrong = tree.add(ROOT, (text[position + 1] + 1) % model.info.n_vocab, 0.25)
            model.evaluate(tree, [ROOT, right, wrong])
            model.commit(tree, [ROOT, right])
            tree = tree.reroot(tree.add(right, text[position + 2], 1.0))
        assert model.n_committed == 40
        assert self.same(model.evaluate(tree, [ROOT])[0], expected)

    # Costs, cancelling and the end

    def test_the_report_counts_the_tokens_of_the_latest_call(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        model.prefill(tokens[:6])
        assert model.last_report.n_tokens == 6
        model.evaluate(TokenTree(tokens[6]), [ROOT])
        assert model.last_report.n_tokens == 1

    def test_a_pass_takes_time_and_stalls_for_no_more(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        model.evaluate(TokenTree(tokens[0]), [ROOT])
        report = model.last_report
        assert 0.0 <= report.stall_s <= report.wall_s
        assert report.wall_s > 0.0

    def test_paging_totals_are_reported(self, model: LanguageModel) -> None:
        assert isinstance(model.paging(), PagingStats)

    def test_cancelling_an_idle_model_does_nothing(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        model.cancel()
        model.prefill(tokens)
        assert model.n_committed == len(tokens)

    def test_a_cancelled_evaluation_leaves_a_model_that_works(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, _ = _wide_tree(tokens)
        expected = self.after(model, [*tokens[:4], tokens[9]])
        model.prefill(tokens[:4])
        ended = threading.Event()

        def cancel_until_it_ends() -> None:
            while not ended.wait(0.001):
                model.cancel()

        canceller = threading.Thread(target=cancel_until_it_ends)
        canceller.start()
        try:
            model.evaluate(tree, range(len(tree)))  # may be over before it is cancelled
        except Cancelled:
            pass
        finally:
            ended.set()
            canceller.join()
        assert model.n_committed == 4
        model.truncate(4)
        assert self.same(model.evaluate(TokenTree(tokens[9]), [ROOT])[0], expected)

    def test_closing_twice_is_closing_once(
        self, model_factory: Callable[[], LanguageModel], tokens: list[int]
    ) -> None:
        """Memory that was released may belong to another model by the second call."""
        model = model_factory()
        totals = model.paging()
        model.close()
        n_threads = threading.active_count()
        model.close()
        assert model.paging() == totals
        assert threading.active_count() == n_threads
        another = model_factory()
        model.close()
        another.prefill(tokens)
        assert another.n_committed == len(tokens)
        another.close()


def _wide_tree(tokens: Sequence[int]) -> tuple[TokenTree, list[list[int]]]:
    """A tree of six nodes on three branches, and for each node the tokens from the root to it."""
    distinct = list(dict.fromkeys(tokens))
    assert len(distinct) >= 6, "the suite's text needs more distinct tokens"
    tree = TokenTree(distinct[0])
    left = tree.add(ROOT, distinct[1], 0.5)
    right = tree.add(ROOT, distinct[2], 0.25)
    tree.add(left, distinct[3], 0.5)
    tree.add(left, distinct[4], 0.25)
    tree.add(right, distinct[5], 0.5)
    branches = [tree.token[tree.path(node)].tolist() for node in range(len(tree))]
    return tree, branches
