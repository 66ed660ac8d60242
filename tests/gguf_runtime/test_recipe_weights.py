"""Weights of a GGUF file, read as float32 and written again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from edgespec_runtimes.gguf.file.header import GgufFile, read_header
from gguf_files import Gguf, tiny_llama

pytest.importorskip("gguf")
sys.path.append(str(Path(__file__).parents[2] / "models" / "recipe"))
import gguf_weights as weights


def header_of(model: Gguf, folder: Path) -> GgufFile:
    return read_header(model.write(folder / "model.gguf"))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
def test_written_again_nothing_but_the_name_differs(kind: str, tmp_path: Path) -> None:
    header = header_of(tiny_llama(kind=kind, tied=False), tmp_path)
    before = weights.read(header)
    weights.write(header, before, tmp_path / "new.gguf", "new")
    again = read_header(tmp_path / "new.gguf")
    assert again.name == "new"
    assert [(t.name, t.type, t.shape) for t in again.tensors] == [
        (t.name, t.type, t.shape) for t in header.tensors
    ]
    for name, values in weights.read(again).items():
        assert np.array_equal(values, before[name])
    kept = header.metadata.keys() - {weights.NAME}
    assert again.metadata.keys() - {weights.NAME} == kept
    assert all(again.metadata[k] == header.metadata[k] for k in kept if _is_scalar(header, k))


def _is_scalar(header: GgufFile, key: str) -> bool:
    return isinstance(header.metadata[key], int | float | str)


def test_types_that_cannot_be_written_become_finer(tmp_path: Path) -> None:
    header = header_of(tiny_llama(embedding=256, kind="Q4_K", head_size=64, ffn=256), tmp_path)
    weights.write(header, weights.read(header), tmp_path / "new.gguf", "new")
    kinds = {tensor.type.name for tensor in read_header(tmp_path / "new.gguf").tensors}
    assert kinds == {"F32", "Q8_0"}
