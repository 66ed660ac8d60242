"""A resident ONNX model stops loading when it is told to."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.errors import Cancelled
from edgespec_runtimes.onnx import runtime
from onnx_files import write_llama
from onnx_models import request


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.is_alive()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    write_llama(path, layers=2)
    return path


def test_a_resident_load_that_is_cancelled_says_so_and_leaves_no_thread(folder: Path) -> None:
    """onnxruntime ends it with an error of its own kind, which once came through."""
    prepared = runtime.prepare(request(folder))
    threads = names_of_threads()
    with closing(prepared), pytest.raises(Cancelled):
        prepared.load(None, lambda what, share: prepared.cancel())
    assert names_of_threads() == threads


def test_a_resident_load_is_told_from_nothing_to_all(folder: Path) -> None:
    shares: list[float] = []
    with closing(runtime.prepare(request(folder))) as prepared:
        prepared.load(None, lambda what, share: shares.append(share)).close()
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert shares == sorted(shares)
