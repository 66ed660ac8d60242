"""A resident ONNX model shows that loading moves, and stops loading when it is told to."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.errors import Cancelled
from edgespec_runtimes.onnx import prepared as prepared_onnx
from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.ort.load_progress import watched
from onnx_files import write_llama
from onnx_models import open_paged, open_resident, request


class Loading:
    """A call that ends when it was cancelled or its progress was told `n_times`; memory grows by
    `step` bytes whenever it is asked for."""

    def __init__(self, n_times: int, step: int = 0) -> None:
        self.shares: list[float] = []
        self.cancelled = False
        self._n_times, self._step = n_times, step
        self._ended = threading.Event()
        self._bytes = 1000

    def call(self) -> str:
        assert self._ended.wait(60)
        return "made"

    def cancel(self) -> None:
        self.cancelled = True
        self._ended.set()

    def progress(self, what: str, share: float) -> None:
        self.shares.append(share)
        if len(self.shares) >= self._n_times:
            self._ended.set()

    def resident(self) -> int:
        self._bytes += self._step
        return self._bytes

    def watch(self) -> str:
        return watched(self.call, self.cancel, "loading", 100, self.progress, self.resident)


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.is_alive()}


def test_progress_moves_although_memory_stands_still() -> None:
    loading = Loading(n_times=6)
    assert loading.watch() == "made"
    assert loading.shares[0] == 0.0
    assert loading.shares[-1] == 1.0
    assert all(one < other for one, other in pairwise(loading.shares))


def test_progress_follows_the_memory_that_is_taken_and_does_not_claim_the_end() -> None:
    loading = Loading(n_times=12, step=10)
    loading.watch()
    assert loading.shares[1] >= 0.08
    assert loading.shares[5] >= 0.4
    assert loading.shares[-2] < 1.0


def test_more_memory_than_expected_is_not_more_than_all() -> None:
    loading = Loading(n_times=6, step=1000)
    loading.watch()
    assert max(loading.shares[:-1]) < 1.0


def test_nothing_is_watched_where_nobody_listens() -> None:
    threads = names_of_threads()
    assert watched(names_of_threads, lambda: None, "loading", 1, None) == threads


def test_telling_that_raises_ends_the_call_and_its_thread() -> None:
    loading = Loading(n_times=1000)

    def interrupted(what: str, share: float) -> None:
        if share > 0:
            raise KeyboardInterrupt

    threads = names_of_threads()
    with pytest.raises(KeyboardInterrupt):
        watched(loading.call, loading.cancel, "loading", 100, interrupted)
    assert loading.cancelled
    assert names_of_threads() == threads


def test_what_the_call_raises_reaches_the_caller() -> None:
    def failing() -> None:
        raise Cancelled("loading was cancelled")

    with pytest.raises(Cancelled):
        watched(failing, lambda: None, "loading", 100, lambda *_: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    write_llama(path, layers=2)
    return path


def test_a_resident_load_that_is_cancelled_says_so_and_leaves_no_thread(folder: Path) -> None:
    """onnxruntime ends it with an error of its own kind, which once came through."""
    prepared = runtime.prepare(request(folder))
    threads = names_of_threads()
    try:
        with pytest.raises(Cancelled, match="loading was cancelled"):
            prepared.load(None, lambda what, share: prepared.cancel())
    finally:
        prepared.close()
    assert names_of_threads() == threads


def test_a_resident_load_is_told_from_nothing_to_all(folder: Path) -> None:
    shares: list[float] = []
    prepared = runtime.prepare(request(folder))
    try:
        prepared.load(None, lambda what, share: shares.append(share)).close()
    finally:
        prepared.close()
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert shares == sorted(shares)


@pytest.mark.parametrize("share", [None, 0.5])
def test_what_was_loaded_is_collapsed_once_resident_or_paged(
    share: float | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collapsed: list[object] = []
    monkeypatch.setattr(prepared_onnx, "collapse_resident", collapsed.append)
    (open_resident(folder) if share is None else open_paged(folder, share=share)).close()
    assert len(collapsed) == 1
