"""EAGLE-3 heads as llama.cpp converts them: what they guess is what the paper's arithmetic gives,
as a line and as a tree, from the target's features where they are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec.cli.command_line import main
from edgespec.errors import ModelError, UsageError
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.head import GgufHead
from gguf_files import ARRAY, I32, U32, Gguf, tiny_eagle3, tiny_llama
from head_cases import TEXT, head_request, read, states_of
from one_tree import ROOT, OneTree
from paging_contract import load_either
from port_calls import evaluate, prefill
from sentences import hold_sentence, refuses

CLOSE = 0.02
"""The cache is in half precision."""


class HeadArithmetic:
    """The head's arithmetic in NumPy, over a whole branch at a time."""

    def __init__(self, model: Gguf) -> None:
        self._model = model
        shape = {name: value[1] for name, value in model.metadata.items() if len(value) == 2}
        self._n_heads = shape["eagle3.attention.head_count"]
        self._n_kv = shape["eagle3.attention.head_count_kv"]
        self._size = shape["eagle3.attention.key_length"]
        self._residual_is_normed = shape["eagle3.norm_before_residual"]
        self._fc_is_normed = shape["eagle3.norm_before_fc"]
        self.has_table = any(tensor.name == "d2t" for tensor in model.tensors)

    def fuse(self, states: np.ndarray) -> np.ndarray:
        rows = states.reshape(len(states), -1)
        if self._fc_is_normed:
            rows = self._normed(rows, "enc.output_norm.weight")
        return rows @ self._weight("fc.weight").T

    def run(self, tokens: Sequence[int], features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits and predicted features after each pair of a token and a feature."""
        n = len(tokens)
        embedded = self._weight("token_embd.weight")[list(tokens)]
        hidden = self._normed(features, "blk.0.attn_norm_2.weight")
        both = np.concatenate([self._normed(embedded, "blk.0.attn_norm.weight"), hidden], axis=1)
        q, k, v = (
            (both @ self._weight(f"blk.0.attn_{name}.weight").T).reshape(n, -1, self._size)
            for name in "qkv"
        )
        group = self._n_heads // self._n_kv
        k, v = np.repeat(self._turned(k), group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("ihd,jhd->hij", self._turned(q), k) / np.sqrt(self._size)
        scores += np.triu(np.full((n, n), -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = np.einsum("hij,jhd->ihd", shares, v).reshape(n, -1)
        base = hidden if self._residual_is_normed else features
        middle = base + attended @ self._weight("blk.0.attn_output.weight").T
        normed = self._normed(middle, "blk.0.ffn_norm.weight")
        gate = normed @ self._weight("blk.0.ffn_gate.weight").T
        inner = gate / (1 + np.exp(-gate)) * (normed @ self._weight("blk.0.ffn_up.weight").T)
        predicted = middle + inner @ self._weight("blk.0.ffn_down.weight").T
        small = self._normed(predicted, "output_norm.weight") @ self._weight("output.weight").T
        if not self.has_table:
            return small, predicted
        logits = np.full((n, 297), -np.inf)
        logits[:, np.frombuffer(self._model.tensor("d2t").data, "<i8")] = small
        return logits, predicted

    def after(self, text: Sequence[int], branch: Sequence[int]) -> np.ndarray:
        """Logits after `branch`, whose first token follows `text`, whose features are known."""
        features = self.fuse(states_of(text))
        for _ in branch:
            tokens = [*text[1:], *branch][: len(features)]
            logits, predicted = self.run(tokens, features)
            features = np.concatenate([features, predicted[-1:]])
        return logits[-1]

    def _weight(self, name: str) -> np.ndarray:
        tensor = self._model.tensor(name)
        return np.frombuffer(tensor.data, "<f4").reshape(tensor.shape[::-1])

    def _normed(self, rows: np.ndarray, name: str) -> np.ndarray:
        scale = np.sqrt((rows.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5)
        return rows / scale * self._weight(name)

    def _turned(self, rows: np.ndarray) -> np.ndarray:
        """Rotary positions: neighbouring values are a pair."""
        half = np.arange(self._size // 2)
        angles = np.arange(len(rows))[:, None, None] * 10000.0 ** (-2 * half / self._size)
        even, odd = rows[..., ::2], rows[..., 1::2]
        turned = np.empty_like(rows, dtype=np.float64)
        turned[..., ::2] = even * np.cos(angles) - odd * np.sin(angles)
        turned[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
        return turned


KINDS = {
    "plain": {},
    "all tokens": {"n_draft_vocab": None},
    "normed residual": {"norm_before_residual": True},
    "normed states": {"norm_before_fc": True},
    "narrower": {"embedding": 32, "head_size": 16},
}


def open_head(path: Path) -> GgufHead:
    return load_either(runtime.prepare(head_request(path, batch_size=8)))


@pytest.fixture(params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[GgufHead, HeadArithmetic]]:
    model = tiny_eagle3(**KINDS[request.param])
    with closing(open_head(model.write(tmp_path / "head.gguf"))) as head:
        yield head, HeadArithmetic(model)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[GgufHead]:
    with closing(open_head(tiny_eagle3().write(tmp_path / "head.gguf"))) as head:
        yield head


@pytest.fixture(scope="module")
def reference() -> HeadArithmetic:
    return HeadArithmetic(tiny_eagle3())


def assert_close(logits: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Compare logits where any are named."""
    named = np.isfinite(expected)
    assert np.allclose(logits[named], expected[named], atol=CLOSE), what


def test_the_line_of_its_guesses_is_the_reference_s(pair: tuple[GgufHead, HeadArithmetic]) -> None:
    head, reference = pair
    read(head, TEXT)
    tree, line = OneTree(40), [40]
    for node in range(6):
        (logits,) = evaluate(head, tree, [node])
        expected = reference.after(TEXT, line)
        assert np.array_equal(np.isfinite(logits), np.isfinite(expected))
        assert_close(logits, expected)
        line.append(int(expected.argmax()))
        assert int(logits.argmax()) == line[-1]
        tree.add(node, line[-1], 0.5)


def test_every_branch_of_a_tree_is_a_line(head: GgufHead, reference: HeadArithmetic) -> None:
    """Evaluated at once: nodes wait for the features that their parents predict."""
    read(head, TEXT)
    tree = OneTree(40)
    left, right = tree.add(ROOT, 41, 0.5), tree.add(ROOT, 60, 0.4)
    tree.add(left, 42, 0.3)
    tree.add(left, 43, 0.2)
    tree.add(right, 44, 0.1)
    logits = evaluate(head, tree, range(len(tree)))
    for node, row in enumerate(logits):
        expected = reference.after(TEXT, tree.token[tree.path(node)].tolist())
        assert_close(row, expected, f"node {node}")


def test_accepted_tokens_count_with_the_target_s_features(
    head: GgufHead, reference: HeadArithmetic
) -> None:
    """Guesses rested on predictions; read again they rest on what the target gave."""
    read(head, TEXT[:6])
    tree = OneTree(TEXT[6])
    node = tree.add(tree.add(ROOT, TEXT[7], 0.5), TEXT[8], 0.5)
    evaluate(head, tree, [0, 1, node])
    head.truncate(head.committed_of(0))
    head.take_features(6, states_of(TEXT[6:9]))
    branch = OneTree(TEXT[6])
    for n, token in enumerate([*TEXT[7:9], 40]):
        branch.add(n, token, 1.0)
    logits = evaluate(head, branch, range(4))
    head.commit(branch, [0, 1, 2], keep=[3])
    for row, text, token in ((1, TEXT[:7], TEXT[7]), (3, TEXT[:9], 40)):
        assert_close(logits[row], reference.after(text, [token]))
    below = branch.reroot(3)
    child = below.add(ROOT, 41, 0.5)
    assert_close(evaluate(head, below, [child])[0], reference.after(TEXT[:9], [40, 41]))


def test_a_shortened_text_is_continued(head: GgufHead, reference: HeadArithmetic) -> None:
    read(head, (*TEXT[:4], 1, 2, 3))
    head.truncate(4)
    head.drop_features(4)
    assert head.committed_of(0) == 4 and not head.lacks_features(4) and head.lacks_features(5)
    head.take_features(4, states_of(TEXT[4:]))
    prefill(head, TEXT[4:])
    assert_close(evaluate(head, OneTree(40), [ROOT])[0], reference.after(TEXT, [40]))


def test_features_with_a_gap_before_them_serve_no_text(head: GgufHead) -> None:
    head.take_features(3, states_of(TEXT[3:]))
    assert head.lacks_features(len(TEXT))
    with refuses(UsageError):
        prefill(head, TEXT)
    assert head.committed_of(0) == 0


def _without(model: Gguf, name: str) -> Gguf:
    model.tensors = [tensor for tensor in model.tensors if tensor.name != name]
    return model


def _with(model: Gguf, key: str, value: tuple) -> Gguf:
    model.metadata[key] = value
    return model


def _with_table(tokens: Sequence[int]) -> Gguf:
    model = tiny_eagle3()
    model.tensor("d2t").data = np.array(tokens, "<i8").tobytes()
    return model


@pytest.mark.parametrize(
    "model",
    [
        _without(tiny_eagle3(), "token_embd.weight"),
        _without(tiny_eagle3(), "output.weight"),
        _without(tiny_eagle3(), "d2t"),
        _with_table([297] * 64),
        _with_table([-1] * 64),
        _with(tiny_eagle3(), "eagle3.target_layers", (ARRAY, I32, [1, 2])),
        _with(tiny_eagle3(), "eagle3.target_layers", (U32, 3)),
        _with(tiny_eagle3(), "eagle3.block_count", (U32, 2)),
    ],
)
def test_what_a_head_needs_and_has_not_is_refused_by_name(model: Gguf, tmp_path: Path) -> None:
    with refuses(ModelError) as caught:
        open_head(model.write(tmp_path / "head.gguf"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "head",
    [
        tiny_eagle3(layers=(1, 2, 4)),
        tiny_eagle3(target_embedding=96),
        _without(tiny_eagle3(embedding=32), "token_embd.weight"),
        _without(tiny_eagle3(), "output.weight"),
    ],
)
def test_the_head_of_another_model_is_refused(
    head: Gguf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tiny_llama(layers=4).write(tmp_path / "target.gguf")
    path = head.write(tmp_path / "head.gguf")
    assert main(["generate", "-m", str(target), "-md", str(path), "-p", "Hello"]) == 3
    hold_sentence(capsys.readouterr().err.splitlines()[-1])
