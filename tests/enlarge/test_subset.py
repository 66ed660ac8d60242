"""A model with fewer layers has the others as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_enlarge import TOKENS, data, logits

from edgespec.errors import ModelError
from edgespec_runtimes.enlarge.gguf.subset import subset, subset_bytes
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.parts import GgufArray
from edgespec_runtimes.gguf.file.validation import validate
from gguf_files import ARRAY, U32, tiny_llama


@pytest.fixture
def source(tmp_path: Path) -> Path:
    model = tiny_llama(layers=4)
    model.metadata["llama.attention.head_count_kv"] = (ARRAY, U32, [2, 2, 2, 2])
    return model.write(tmp_path / "source.gguf")


def test_layers_move_up(source: Path, tmp_path: Path) -> None:
    subset(source, tmp_path / "out.gguf", [0, 3])
    before, after = read_header(source), read_header(tmp_path / "out.gguf")
    assert after.n_layers == 2
    for name in ("attn_q", "ffn_down"):
        assert data(after, f"blk.1.{name}.weight") == data(before, f"blk.3.{name}.weight")
    assert data(after, "token_embd.weight") == data(before, "token_embd.weight")


def test_an_array_of_all_layers_loses_the_same_ones(source: Path, tmp_path: Path) -> None:
    subset(source, tmp_path / "out.gguf", [1])
    array = read_header(tmp_path / "out.gguf").metadata["llama.attention.head_count_kv"]
    assert isinstance(array, GgufArray)
    assert array.values() == [2]


def test_llama_cpp_runs_it(source: Path, tmp_path: Path) -> None:
    subset(source, tmp_path / "out.gguf", [1, 2])
    validate(read_header(tmp_path / "out.gguf"))
    assert logits(tmp_path / "out.gguf", TOKENS).shape[0] == len(TOKENS)


def test_all_layers_are_the_same_model(source: Path, tmp_path: Path) -> None:
    subset(source, tmp_path / "out.gguf", range(4))
    assert (logits(source, TOKENS) == logits(tmp_path / "out.gguf", TOKENS)).all()


def test_its_size_is_known_before(source: Path, tmp_path: Path) -> None:
    subset(source, tmp_path / "out.gguf", [0, 2])
    assert subset_bytes(source, [0, 2]) == read_header(tmp_path / "out.gguf").weight_bytes


@pytest.mark.parametrize("layers", [[], [4], [1, 0], [0, 0], [-1]])
def test_layers_that_are_not_there_are_refused(
    source: Path, tmp_path: Path, layers: list[int]
) -> None:
    with pytest.raises(ModelError, match="4 layers"):
        subset(source, tmp_path / "out.gguf", layers)
    assert not (tmp_path / "out.gguf").exists()
