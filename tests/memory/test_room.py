"""Lacks that would end the process without a sentence are refused first."""

from __future__ import annotations

import threading

import pytest

import edgespec
from edgespec.errors import EdgespecError
from edgespec.models.embedded import embedded_pair


def test_a_limit_of_threads_is_a_sentence_before_a_model_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libgomp ended the process with a line of its own."""
    n_before, start = threading.active_count(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if threading.active_count() >= n_before + 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(EdgespecError, match=r"only 3 threads more, .*pids\.max, ulimit -u"):
        edgespec.load(embedded_pair().target)
