"""Weights that a model in memory packs for the CPU are packed where they are paged to as well: same
bits at every budget."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from test_gguf_model import open_paged, open_resident
from test_gguf_types import quantised

from edgespec.ports import LanguageModel
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.layout import TENSOR_TYPES
from edgespec_runtimes.gguf.kernels.packer import PIECE_BYTES, Packer, packs_invariantly
from edgespec_runtimes.gguf.llama import abi, ggml, loading
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.weights.packing import packed_matrices
from one_tree import line
from port_calls import evaluate, prefill

Q4_0 = 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = quantised("Q4_0", tmp_path_factory.mktemp("packed"))
    if not packed_matrices(read_header(path)):
        pytest.skip("this processor has no packed layout for Q4_0 that rounds evenly")
    return path


@pytest.fixture
def paged(path: Path) -> Iterator[GgufModel]:
    with closing(open_paged(path)) as model:
        yield model


def logits(model: LanguageModel) -> np.ndarray:
    """The logits of a tree after a prompt."""
    prefill(model, list(range(300, 380)))
    found = evaluate(model, *line(range(400, 412)))
    model.close()
    return found


def test_a_paged_model_has_the_logits_of_the_model_in_memory(path: Path) -> None:
    expected = logits(open_resident(path))
    for share in (0.2, 0.8):
        assert np.array_equal(logits(open_paged(path, share)), expected)


def test_between_passes_streamed_weights_have_the_buffer_fields_of_the_file(
    paged: GgufModel,
) -> None:
    """A reader outside a pass finds the mapping: slow, and never wrong."""
    evaluate(paged, *line(range(400, 404)))
    streamed = [weight.address for swaps in paged._weights._swaps for weight, _ in swaps]
    assert not paged._weights.packed.keys().isdisjoint(streamed)
    buffers = {abi.GgmlTensor.from_address(address).buffer for address in streamed}
    assert all(abi.buffer_is_host(buffer) for buffer in buffers)


def test_where_packing_is_not_allowed_weights_stay_as_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "packs", lambda: False)
    assert not packed_matrices(read_header(path))


def test_weights_are_packed_piece_by_piece_as_llama_cpp_packs_them_at_once(path: Path) -> None:
    n_in, n_out = 2048, 1032
    row_bytes = TENSOR_TYPES[Q4_0].nbytes(n_in)
    assert n_out * row_bytes > PIECE_BYTES
    stored = np.random.default_rng(0).integers(0, 256, n_out * row_bytes, np.uint8).tobytes()
    buffer_type = ggml.packing_buffer_type(Q4_0, n_in, n_out)
    assert buffer_type is not None
    with ExitStack() as owned, Packer() as packer:
        expected = ctypes.create_string_buffer(len(stored))
        tensor = ggml.new_tensor(ggml.new_context(owned), Q4_0, n_in, n_out)
        ggml.place(tensor, ggml.new_buffer(owned, buffer_type, 64), ctypes.addressof(expected))
        ggml.set_tensor(tensor, stored, len(stored))
        packer.buffer_fields(Q4_0, n_in, n_out)
        found = ctypes.create_string_buffer(stored, len(stored))
        packer.pack(ctypes.addressof(found), Q4_0, n_in, n_out)
        assert found.raw == expected.raw != stored


def test_weights_of_any_number_of_widths_are_packed(path: Path) -> None:
    """The process was aborted at the 179th."""
    with Packer() as packer:
        for n_in in range(32, 32 * 400, 32):
            if packs_invariantly(Q4_0, n_in, 16):
                packer.buffer_fields(Q4_0, n_in, 16)
                found = ctypes.create_string_buffer(16 * TENSOR_TYPES[Q4_0].nbytes(n_in))
                packer.pack(ctypes.addressof(found), Q4_0, n_in, 16)


def test_rows_that_fill_no_group_stay_as_stored(path: Path) -> None:
    assert not packs_invariantly(Q4_0, 256, 9)
