"""Weights of a loaded ONNX model are its own: what happens to its files changes no pass."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.errors import WeightReadError
from edgespec_runtimes.onnx.decoder import Decoder
from edgespec_runtimes.onnx.ort.file_mappings import copy_mapped, mapped_ranges
from onnx_files import DATA_FILE, write_llama
from onnx_models import open_paged, open_resident
from port_calls import prefill

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped")


@pytest.fixture
def mapped(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 10_000)
    return path


def test_what_is_mapped_of_a_file_becomes_memory_with_the_same_bytes(mapped: Path) -> None:
    content = mapped.read_bytes()
    with mapped.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapping:
        assert mapped_ranges(str(mapped))
        copy_mapped(mapped)
        assert not mapped_ranges(str(mapped))
        os.truncate(mapped, 0)
        assert mapping[:] == content


@pytest.mark.slow
@pytest.mark.parametrize("is_paged", [False, True])
def test_nothing_of_a_models_files_stays_mapped(is_paged: bool, tmp_path: Path) -> None:
    """A file that was cut short in a pass ended the process with SIGBUS."""
    write_llama(tmp_path, layers=2, ffn=256, vocab=512, bits=4)
    model = open_paged(tmp_path, 1.0) if is_paged else open_resident(tmp_path)
    assert not mapped_ranges(str(tmp_path / DATA_FILE))
    model.close()


def test_a_pass_during_which_a_file_is_written_to_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files were checked before a pass only, so a text could end with tokens of other weights."""
    write_llama(tmp_path, layers=2, ffn=128, vocab=512)
    model, run = open_resident(tmp_path), Decoder.run

    def written_to(*arguments: object) -> np.ndarray:
        data = (tmp_path / DATA_FILE).stat().st_size
        (tmp_path / DATA_FILE).write_bytes(bytes(data))
        return run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "run", written_to)
    with pytest.raises(WeightReadError):
        prefill(model, [1, 2])
    assert model.committed_of(0) == 0
    model.close()
