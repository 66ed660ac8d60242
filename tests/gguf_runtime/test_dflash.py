"""DFlash heads as llama.cpp converts them: what they guess is what llama.cpp's own driver reads
from the same graph, whatever was read, shortened and kept before."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import ModelError, UsageError
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.block_head import GgufBlockHead
from edgespec_runtimes.gguf.llama.bindings import lib, llama_cpp_ext
from gguf_files import ARRAY, BOOL, I32, U32, Gguf, borrowing, tiny_dflash, tiny_llama
from head_cases import N_VALUES, TEXT, head_request, read, states_of
from one_tree import ROOT, OneTree
from paging_contract import load_either
from port_calls import evaluate, prefill
from sentences import refuses

ROOT_TOKEN = 40


class OwnDriver:
    """A head driven as llama.cpp's common/speculative.cpp drives `draft-dflash`."""

    def __init__(self, path: Path, block_size: int = 8, is_causal: bool = False) -> None:
        params = lib.llama_model_default_params()
        params.use_mmap = False
        self._model = lib.llama_model_load_from_file(str(path).encode(), params)
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = 256, 64, 64
        settings.n_outputs_max = 64
        settings.n_threads = settings.n_threads_batch = 1
        settings.flash_attn_type, settings.kv_unified, settings.swa_full = 1, True, True
        self._context = lib.llama_init_from_model(self._model, settings)
        self._size = block_size
        lib.llama_set_causal_attn(self._context, is_causal)

    def close(self) -> None:
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def block(self, states: np.ndarray, first_row: int = 1) -> np.ndarray:
        """Logits of the masks after a text with these `states` and a root: [masks, tokens]; from
        the root on with `first_row` 0."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        batch = lib.llama_batch_ext_init(self._context)
        for place, row in enumerate(states):
            values = np.ascontiguousarray(row.ravel())
            pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            index = lib.llama_batch_ext_add_embd(batch, 0, lib.llama_embd(pointer, 1, values.size))
            self._place(batch, index, place)
        if len(states):
            assert not lib.llama_process(self._context, lib.LLAMA_PROCESS_TYPE_DECODE, batch)
        lib.llama_batch_ext_clear(batch)
        for n in range(self._size):
            index = lib.llama_batch_ext_add_token(batch, 0, ROOT_TOKEN if not n else 296)
            self._place(batch, index, len(states) + n)
            lib.llama_batch_ext_set_output_logits(batch, index, True)
        assert not lib.llama_process(self._context, lib.LLAMA_PROCESS_TYPE_DECODE, batch)
        lib.llama_batch_ext_free(batch)
        rows = [
            lib.llama_get_logits_ith(self._context, n)[:297] for n in range(first_row, self._size)
        ]
        return np.array(rows, np.float32)

    def line(self, states: np.ndarray, n_candidates: int) -> list[int]:
        """The guesses in a row that a DFlash2 head's driver makes of its table."""
        llama_cpp_ext.llama_set_embeddings_nextn(self._context, True, False)
        self.block(states)
        table = np.array(
            llama_cpp_ext.llama_get_embeddings_nextn(self._context)[: N_VALUES * self._size]
        ).reshape(self._size, N_VALUES)
        line, before = [], 0
        for row in table[1:]:
            begin = n_candidates * (1 + before)
            before = int(row[begin : begin + n_candidates].argmax())
            line.append(int(row[before]))
        return line

    def _place(self, batch: int, index: int, place: int) -> None:
        assert index >= 0
        lib.llama_batch_ext_set_pos(batch, index, (ctypes.c_int32 * 4)(place, place, place, 0))


def causal(model: Gguf) -> Gguf:
    model.metadata["dflash.attention.causal"] = (BOOL, True)
    return model


def sliding(model: Gguf) -> Gguf:
    model.metadata |= {
        "dflash.attention.sliding_window": (U32, 6),
        "dflash.attention.sliding_window_pattern": (ARRAY, BOOL, [True, False]),
    }
    return model


KINDS = {
    "plain": tiny_dflash(),
    "some tokens": tiny_dflash(n_draft_vocab=64),
    "causal": causal(tiny_dflash()),
    "sliding windows": sliding(tiny_dflash()),
    "one output and embeddings": Gguf(
        tiny_dflash().metadata, [t for t in tiny_dflash().tensors if t.name != "output.weight"]
    ),
    "two layers of the target": tiny_dflash(layers=(2, 3)),
    "DSpark": tiny_dflash(begins=True),
    "DSpark, bonus token": tiny_dflash(begins=False),
    "DSpark, some tokens": tiny_dflash(begins=True, n_draft_vocab=64),
}


def open_head(path: Path, target: Path | None = None) -> GgufBlockHead:
    return load_either(runtime.prepare(head_request(path, target=target)))


@pytest.fixture
def head(tmp_path: Path) -> Iterator[GgufBlockHead]:
    with closing(open_head(tiny_dflash().write(tmp_path / "head.gguf"))) as head:
        yield head


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnDriver]:
    path = tiny_dflash().write(tmp_path_factory.mktemp("driver") / "head.gguf")
    with closing(OwnDriver(path)) as driver:
        yield driver


def block(head: GgufBlockHead, root_token: int = ROOT_TOKEN) -> np.ndarray:
    """Its guesses at all depths."""
    line = OneTree(root_token, head.info.block_guesses)
    for node in range(head.info.block_guesses - 1):
        line.add(node, 1, 1.0)
    return evaluate(head, line, range(head.info.block_guesses))


@pytest.mark.parametrize("kind", KINDS)
def test_guesses_of_all_depths_are_those_of_llama_cpp_s_driver(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind].write(tmp_path / "head.gguf")
    n_layers = 2 if kind.startswith("two") else 3
    with closing(open_head(path)) as head, closing(OwnDriver(path, 8, kind == "causal")) as driver:
        for text in (TEXT, TEXT[:3]):
            head.drop_features(0)
            read(head, text, n_layers)
            first_row = 0 if kind in ("DSpark", "DSpark, some tokens") else 1
            expected = driver.block(states_of(text)[:, :n_layers], first_row)
            assert len(expected) == head.block_guesses
            assert np.array_equal(block(head), expected)


@pytest.mark.parametrize("block_size", [2, 7, 8])
def test_the_best_line_of_chained_guesses_is_that_of_llama_cpp_s_driver(
    block_size: int, tmp_path: Path
) -> None:
    """DFlash2: what follows a candidate is scored after that candidate."""
    path = tiny_dflash(n_candidates=4, block_size=block_size).write(tmp_path / "head.gguf")
    with closing(open_head(path)) as head, closing(OwnDriver(path, block_size)) as driver:
        assert head.info.is_chained
        for text in (TEXT, TEXT[:3]):
            head.drop_features(0)
            read(head, text)
            tree, line = OneTree(ROOT_TOKEN), []
            for node in range(head.info.block_guesses):
                (logits,) = evaluate(head, tree, [node])
                assert np.isfinite(logits).sum() == 4
                line.append(int(logits.argmax()))
                tree.add(node, line[-1], 1.0)
            assert line == driver.line(states_of(text), 4)


def test_what_follows_a_guess_of_others_is_what_its_place_alone_says(tmp_path: Path) -> None:
    """A selector scores nothing after a token that was none of its candidates."""
    path = tiny_dflash(n_candidates=4).write(tmp_path / "head.gguf")
    with closing(open_head(path)) as head, closing(OwnDriver(path)) as driver:
        read(head, TEXT)
        tree = OneTree(ROOT_TOKEN)
        strangers = np.flatnonzero(np.isinf(evaluate(head, tree, [ROOT])[0]))
        node = tree.add(ROOT, int(strangers[0]), 0.1)
        assert np.array_equal(evaluate(head, tree, [node])[0], driver.block(states_of(TEXT))[1])


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    "names", [("output.weight",), ("token_embd.weight", "output.weight")], ids=["output", "both"]
)
def test_matrices_that_a_head_has_not_are_its_target_s(
    names: tuple[str, ...], tied: bool, tmp_path: Path
) -> None:
    target, whole = tiny_llama(layers=4, tied=tied, kind="F32"), tiny_dflash()
    path = borrowing(whole, target, *names).write(tmp_path / "head.gguf")
    if names == ("output.weight",):  # llama.cpp takes the head's own embeddings for both
        whole.tensor("output.weight").data = whole.tensor("token_embd.weight").data
    lender = target.write(tmp_path / "target.gguf")
    reference = whole.write(tmp_path / "whole.gguf")
    with closing(open_head(path, target=lender)) as head, closing(OwnDriver(reference)) as driver:
        for text in (TEXT, TEXT[:4]):
            head.drop_features(0)
            read(head, text)
            assert np.array_equal(block(head), driver.block(states_of(text)))


def test_a_node_s_guesses_depend_on_its_depth_alone(head: GgufBlockHead) -> None:
    read(head, TEXT)
    tree = OneTree(ROOT_TOKEN)
    left, right = tree.add(ROOT, 41, 0.5), tree.add(ROOT, 60, 0.4)
    below = tree.add(right, 42, 0.3)
    logits = evaluate(head, tree, [ROOT, left, right, below])
    assert np.array_equal(logits, block(head)[[0, 1, 1, 2]])


def test_a_pass_leaves_nothing_and_sees_nothing_that_was_not_read(
    head: GgufBlockHead, driver: OwnDriver
) -> None:
    """Features of what follows may be known already."""
    head.take_features(0, states_of(TEXT))
    prefill(head, TEXT[:4])
    for _ in range(2):
        assert np.array_equal(block(head), driver.block(states_of(TEXT[:4])))
    prefill(head, TEXT[4:])
    assert np.array_equal(block(head), driver.block(states_of(TEXT)))
    head.truncate(2)
    assert np.array_equal(block(head), driver.block(states_of(TEXT[:2])))


def test_a_shortened_text_is_continued(head: GgufBlockHead, driver: OwnDriver) -> None:
    read(head, (*TEXT[:4], 1, 2, 3))
    block(head)
    head.drop_features(4)
    assert head.committed_of(0) == 4 and not head.lacks_features(4) and head.lacks_features(5)
    head.take_features(4, states_of(TEXT[4:]))
    prefill(head, TEXT[4:])
    assert np.array_equal(block(head), driver.block(states_of(TEXT)))


def test_features_with_a_gap_before_them_serve_no_text(head: GgufBlockHead) -> None:
    head.take_features(3, states_of(TEXT[3:]))
    assert head.lacks_features(1)
    with refuses(UsageError):
        prefill(head, TEXT)
    assert head.committed_of(0) == 0


def changed(model: Gguf | None = None, **values: tuple | None) -> Gguf:
    """A head with other metadata; None is none."""
    model = model or tiny_dflash()
    for name, value in values.items():
        key = f"tokenizer.ggml.{name}" if name.startswith("mask") else f"dflash.{name}"
        model.metadata.pop(key, None)
        if value is not None:
            model.metadata[key] = value
    return model


def with_tensor(name: str) -> Gguf:
    model = tiny_dflash()
    model.tensors.append(replace(model.tensor("fc.weight"), name=name))
    return model


@pytest.mark.parametrize(
    "model",
    [
        with_tensor("blk.0.hc_attn_fn.weight"),
        changed(tiny_dflash(begins=True), block_size=None),
        with_tensor("selector_hidden.weight"),
        changed(tiny_dflash(n_candidates=4), selector_top_k=(U32, 298)),
        changed(mask_token_id=None),
        changed(mask_token_id=(U32, 297)),
        changed(block_size=(U32, 1)),
        changed(target_layers=None),
        changed(target_layers=(ARRAY, I32, [])),
        changed(**{"attention.value_length": (U32, 16)}),
        changed(**{"attention.head_count": (ARRAY, U32, [2, 4])}),
        borrowing(tiny_dflash(), tiny_llama(), "token_embd.weight"),
    ],
)
def test_what_a_head_needs_and_has_not_is_refused_by_name(model: Gguf, tmp_path: Path) -> None:
    with refuses(ModelError) as caught:
        open_head(model.write(tmp_path / "head.gguf"))
    assert "\n" not in str(caught.value)
