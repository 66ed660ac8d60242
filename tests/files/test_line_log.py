"""Logs of lines: what a killed process left is kept, except for a torn line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from edgespec.errors import UsageError
from edgespec.files.line_log import SYNC_S, LineLog
from sentences import refuses


def read(log: LineLog) -> list[bytes]:
    return list(log.lines(100))


def test_a_later_log_goes_on_after_the_lines_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LineLog.at(path) as log:
        assert read(log) == []
        log.append(b"one")
    with LineLog.at(path) as log:
        assert read(log) == [b"one\n"]
        log.append(b"two")
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n\ntw")
    with LineLog.at(path) as log:
        assert read(log) == [b"one\n"]
        assert log.torn == b"tw"
        log.cut_torn_line()
        log.append(b"two")
    assert path.read_bytes() == b"one\n\ntwo\n"


def test_of_a_line_that_is_too_long_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 150 + b"\n")
    with LineLog.at(path) as log:
        assert read(log)[0] == b"x" * 100
        assert log.torn == b""


def test_one_process_writes_a_log_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LineLog.at(path), refuses(UsageError):
        LineLog.at(path)
    LineLog.at(path).close()


def test_what_a_full_disk_took_of_a_line_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    write = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:2])

    with LineLog.at(path) as log:
        log.append(b"one")
        monkeypatch.setattr(os, "write", full)
        with refuses(OSError):
            log.append(b"two")
        monkeypatch.undo()
        log.append(b"three")
    assert path.read_bytes() == b"one\nthree\n"


def test_lines_reach_the_disk_now_and_then_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[float] = []
    now = [0.0]
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(now[0]))
    log = LineLog(descriptor, lambda: now[0])
    log._is_file = True
    for now[0] in (1.0, SYNC_S, SYNC_S + 1, 3 * SYNC_S):
        log.append(b"line")
    log.close()
    assert synced == [SYNC_S, 3 * SYNC_S, 3 * SYNC_S]
