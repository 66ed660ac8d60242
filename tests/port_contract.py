"""Contract tests of runtimes behind `edgespec.ports.LanguageModel`.

A runtime's test module defines a class:

    class TestFakeModelKeepsTheContract(PortContract):
        opened = partial(FakeModel, ...)

It opens a fresh model, which the suite closes; successive tests share one model. The
context must hold at least 48 tokens. `slots_contract` is for models with several slots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from edgespec.errors import Cancelled, UsageError
from edgespec.ports import LanguageModel, PassPart
from edgespec.values import PagingStats
from one_tree import ROOT, OneTree
from port_calls import evaluate, prefill
from port_models import KeptOpen, OpensModels

TEXT = "Once there were two wolves, and the younger one asked: who told you that the moon is old?"

KNOWN: WeakKeyDictionary[LanguageModel, dict[tuple[int, ...], np.ndarray]] = WeakKeyDictionary()
"""Reference logits after some tokens, by the model that computed them: tests ask for the same."""


class PortContract(OpensModels):
    atol: float = 0.0
    """Largest difference of logits when the same tokens are batched in another way."""

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
        known = KNOWN.setdefault(model, {})
        if (asked := tuple(tokens)) not in known:
            for token in tokens:
                tree = OneTree(token)
                logits = evaluate(model, tree, [ROOT])
                model.commit(tree, [ROOT])
            model.truncate(0)
            known[asked] = logits[0]
        return known[asked]

    # The vocabulary

    def test_a_number_that_is_no_token_is_refused(self, model: LanguageModel) -> None:
        vocabulary = model.vocabulary
        for token in (-1, vocabulary.n_vocab, 1 << 31, 1 << 80):
            with pytest.raises(UsageError):
                vocabulary.piece(token)

    def test_no_token_is_longer_than_the_longest(self, model: LanguageModel) -> None:
        vocabulary = model.vocabulary
        pieces = map(vocabulary.piece, range(vocabulary.n_vocab))
        assert max(map(len, pieces)) <= vocabulary.longest_piece_bytes

    # The committed prefix

    def test_a_fresh_model_has_committed_nothing(
        self, model: LanguageModel, kept_open: KeptOpen
    ) -> None:
        assert kept_open.n_committed_at_first
        assert not any(kept_open.n_committed_at_first)

    def test_what_it_says_that_it_can_it_has(self, model: LanguageModel) -> None:
        own, info = type(model), model.info
        assert not info.adjusts or own.divide is not LanguageModel.divide
        assert not info.gives_features or own.give_features is not LanguageModel.give_features
        assert not info.block_tokens or own.write_block is not LanguageModel.write_block
        assert not info.needs_checkpoints or own.checkpoints is not LanguageModel.checkpoints

    def test_prefill_appends_to_the_prefix(self, model: LanguageModel, tokens: list[int]) -> None:
        prefill(model, tokens[:5])
        prefill(model, tokens[5:8])
        assert model.committed_of(0) == 8

    def test_prefilled_tokens_are_the_context_of_what_follows(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        expected = self.after(model, tokens[:8])
        prefill(model, tokens[:7])
        assert self.same(evaluate(model, OneTree(tokens[7]), [ROOT])[0], expected)

    def test_prefill_reports_progress_up_to_the_whole(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        shares: list[float] = []
        prefill(model, tokens, progress=lambda what, share: shares.append(share))
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1.0)

    def test_prefill_past_the_context_is_refused_and_changes_nothing(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        prefill(model, tokens[:4])
        with pytest.raises(UsageError):
            prefill(model, tokens[:1] * model.info.n_ctx)
        assert model.committed_of(0) == 4

    def test_the_pass_over_a_prompts_end_gives_its_last_tokens_logits(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        """They are those of a pass of its own, to the bit."""
        if not model.info.prompts_give_logits:
            pytest.skip("the last token of its prompts has a pass of its own")
        shares: list[float] = []
        prefill(model, tokens[:7])
        expected = [evaluate(model, OneTree(tokens[7]), [ROOT])]
        model.truncate(0)
        prefill(model, tokens[:8])
        expected.append(evaluate(model, OneTree(tokens[8]), [ROOT]))
        model.truncate(0)
        for begin in (0, 3):
            prefill(model, tokens[:begin])
            part = PassPart(0, OneTree(tokens[7]), [ROOT], tokens[begin:7])
            [logits] = model.evaluate([part], lambda what, share: shares.append(share))
            assert logits.dtype == np.float32
            assert self.same(logits, expected[0])
            assert begin or np.array_equal(logits, expected[0])
            assert model.last_report.passes == 1
            assert model.committed_of(0) == 7
            model.commit(part.pool, [ROOT])
            assert model.committed_of(0) == 8
            assert self.same(evaluate(model, OneTree(tokens[8]), [ROOT]), expected[1])
            assert shares == sorted(shares)
            assert shares[-1] == pytest.approx(1.0)
            model.truncate(0)
            shares.clear()

    def test_a_prompt_past_the_context_gives_no_logits_and_changes_nothing(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        if not model.info.prompts_give_logits:
            pytest.skip("the last token of its prompts has a pass of its own")
        prefill(model, tokens[:4])
        reads = tokens[:1] * (model.info.n_ctx - 4)
        with pytest.raises(UsageError):
            model.evaluate([PassPart(0, OneTree(tokens[1]), [ROOT], reads)])
        assert model.committed_of(0) == 4

    def test_truncate_leaves_a_prefix_that_can_be_continued(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        expected = self.after(model, [*tokens[:4], tokens[12]])
        prefill(model, tokens)
        model.truncate(4)
        assert model.committed_of(0) == 4
        assert self.same(evaluate(model, OneTree(tokens[12]), [ROOT])[0], expected)

    def test_truncate_drops_provisional_nodes(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        expected = self.after(model, [*tokens[:4], tokens[9]])
        prefill(model, tokens[:4])
        evaluate(model, OneTree(tokens[4]), [ROOT])
        model.truncate(4)
        assert self.same(evaluate(model, OneTree(tokens[9]), [ROOT])[0], expected)

    # Logits of a tree

    def test_logits_are_float32_of_a_row_per_node(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree = OneTree(tokens[0])
        tree.add(ROOT, tokens[1], 0.5)
        logits = evaluate(model, tree, [0, 1])
        assert logits.dtype == np.float32
        assert logits.shape == (2, model.info.n_vocab)

    def test_logits_belong_to_the_caller(self, model: LanguageModel, tokens: list[int]) -> None:
        tree = OneTree(tokens[0])
        tree.add(ROOT, tokens[1], 0.5)
        first = evaluate(model, tree, [0])
        before = deepcopy(first)
        evaluate(model, tree, [1])
        assert np.array_equal(first, before)

    def test_every_node_sees_its_own_branch_and_no_other(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        self.check_every_node(model, tokens[:4], tokens)

    def test_every_node_of_a_tree_that_begins_a_text_sees_its_own_branch(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        """Siblings got successive positions in onnxruntime's fused attention, which took such a
        tree for a prompt."""
        self.check_every_node(model, [], tokens)

    def check_every_node(
        self, model: LanguageModel, prefix: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Compare the logits of a wide tree after `prefix` with those of its branches alone."""
        tree, branches = _wide_tree(tokens)
        expected = [self.after(model, [*prefix, *branch]) for branch in branches]
        if prefix:
            prefill(model, prefix)
        logits = evaluate(model, tree, range(len(tree)))
        for node, row in enumerate(expected):
            assert self.same(logits[node], row), f"node {node}"

    def test_a_tree_may_be_evaluated_in_parts(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, branches = _wide_tree(tokens)
        expected = [self.after(model, [*tokens[:4], *branch]) for branch in branches]
        prefill(model, tokens[:4])
        evaluate(model, tree, [0, 2])
        logits = evaluate(model, tree, [1, 5, 3])
        for row, node in zip(logits, (1, 5, 3), strict=True):
            assert self.same(row, expected[node]), f"node {node}"

    def test_evaluating_commits_nothing(self, model: LanguageModel, tokens: list[int]) -> None:
        prefill(model, tokens[:4])
        evaluate(model, OneTree(tokens[4]), [ROOT])
        assert model.committed_of(0) == 4

    def test_a_tree_may_grow_while_it_is_evaluated(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, branches = _wide_tree(tokens)
        nodes = list(range(len(tree)))
        expected = self.after(model, [*tokens[:4], *branches[-1]])
        prefill(model, tokens[:4])
        done = threading.Event()

        def grow() -> None:
            node = nodes[-1]
            while tree.n < 200 and not done.is_set():
                node = tree.add(node, tokens[0], 0.5)

        grower = threading.Thread(target=grow)
        grower.start()
        try:
            logits = evaluate(model, tree, nodes)
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
        prefill(model, tokens[:4])
        evaluate(model, tree, range(len(tree)))
        model.commit(tree, tree.path(4))
        assert model.committed_of(0) == 4 + len(tree.path(4))
        assert self.same(evaluate(model, OneTree(tokens[13]), [ROOT])[0], expected)

    def test_kept_nodes_are_the_context_of_their_children(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        expected = self.after(model, [*tokens[:4], *_wide_tree(tokens)[1][4], tokens[14]])
        tree, kept = self.keep_a_node(model, tokens)
        new = tree.add(kept, tokens[14], 0.5)
        assert self.same(evaluate(model, tree, [new])[0], expected)

    def test_kept_nodes_can_be_committed_later(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        expected = self.after(model, [*tokens[:4], *_wide_tree(tokens)[1][4], tokens[14]])
        tree, kept = self.keep_a_node(model, tokens)
        model.commit(tree, tree.path(kept))
        assert self.same(evaluate(model, OneTree(tokens[14]), [ROOT])[0], expected)

    def keep_a_node(self, model: LanguageModel, tokens: Sequence[int]) -> tuple[OneTree, int]:
        """Commit the root of a wide tree after four tokens; returns the tree below its first child,
        and there the node that ends the branch to node 4."""
        tree, branches = _wide_tree(tokens)
        prefill(model, tokens[:4])
        evaluate(model, tree, range(len(tree)))
        model.commit(tree, [ROOT], tree.subtree(1))
        below = tree.reroot(1)
        return below, below.token[: len(below)].tolist().index(branches[4][-1])

    def test_twenty_rounds_leave_the_cache_as_if_read_in_one_go(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        """Dropped nodes leave no cells behind and hide none that stay."""
        text = (tokens * 3)[:41]
        expected = self.after(model, text)
        tree = OneTree(text[0])
        for position in range(0, len(text) - 2, 2):
            right = tree.add(ROOT, text[position + 1], 0.5)
            wrong = tree.add(ROOT, (text[position + 1] + 1) % model.info.n_vocab, 0.25)
            evaluate(model, tree, [ROOT, right, wrong])
            model.commit(tree, [ROOT, right])
            tree = tree.reroot(tree.add(right, text[position + 2], 1.0))
        assert model.committed_of(0) == 40
        assert self.same(evaluate(model, tree, [ROOT])[0], expected)

    # Costs, cancelling and the end

    def test_the_report_counts_the_tokens_of_the_latest_call(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        prefill(model, tokens[:6])
        assert model.last_report.n_tokens == 6
        evaluate(model, OneTree(tokens[6]), [ROOT])
        assert model.last_report.n_tokens == 1

    def test_a_pass_takes_time_and_stalls_for_no_more(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        evaluate(model, OneTree(tokens[0]), [ROOT])
        report = model.last_report
        assert 0.0 <= report.stall_s <= report.wall_s
        assert report.wall_s > 0.0

    def test_paging_totals_are_reported(self, model: LanguageModel) -> None:
        assert isinstance(model.paging(), PagingStats)

    def test_cancelling_an_idle_model_does_nothing(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        model.cancel()
        prefill(model, tokens)
        assert model.committed_of(0) == len(tokens)

    def test_a_cancelled_evaluation_leaves_a_model_that_works(
        self, model: LanguageModel, tokens: list[int]
    ) -> None:
        tree, _ = _wide_tree(tokens)
        expected = self.after(model, [*tokens[:4], tokens[9]])
        prefill(model, tokens[:4])
        ended = threading.Event()

        def cancel_until_it_ends() -> None:
            while not ended.wait(0.001):
                model.cancel()

        canceller = threading.Thread(target=cancel_until_it_ends)
        canceller.start()
        try:
            evaluate(model, tree, range(len(tree)))  # may be over before it is cancelled
        except Cancelled:
            pass
        finally:
            ended.set()
            canceller.join()
        assert model.committed_of(0) == 4
        model.truncate(4)
        assert self.same(evaluate(model, OneTree(tokens[9]), [ROOT])[0], expected)

    def test_closing_twice_is_closing_once(
        self,
        request: pytest.FixtureRequest,
        kept_open: KeptOpen,
        model_factory: Callable[[], LanguageModel],
        tokens: list[int],
    ) -> None:
        """Memory that was released may belong to another model by the second call."""
        model = kept_open.model(request, model_factory)
        kept_open.give_away(model)
        n_passes = model.paging().passes
        model.close()  # weights are read ahead until here
        totals, n_threads = model.paging(), threading.active_count()
        model.close()
        assert model.paging() == totals
        assert totals.passes == n_passes
        assert threading.active_count() == n_threads
        another = kept_open.model(request, model_factory)
        model.close()
        prefill(another, tokens)
        assert another.committed_of(0) == len(tokens)


def _wide_tree(tokens: Sequence[int]) -> tuple[OneTree, list[list[int]]]:
    """A tree of six nodes on three branches, and for each node the tokens from the root to it."""
    distinct = list(dict.fromkeys(tokens))
    assert len(distinct) >= 6, "the suite's text needs more distinct tokens"
    tree = OneTree(distinct[0])
    left = tree.add(ROOT, distinct[1], 0.5)
    right = tree.add(ROOT, distinct[2], 0.25)
    tree.add(left, distinct[3], 0.5)
    tree.add(left, distinct[4], 0.25)
    tree.add(right, distinct[5], 0.5)
    branches = [tree.token[tree.path(node)].tolist() for node in range(len(tree))]
    return tree, branches
