"""Anything but a regular file is refused before opening it can block."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from edgespec import registry
from edgespec.errors import ModelError
from edgespec.files.regular import open_regular, read_at_most
from sentences import refuses

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")


def special(folder: Path, kind: str) -> Path:
    path = folder / kind
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    elif kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    return path


KINDS = ("a FIFO", "a socket", "a directory", "a device")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_named(tmp_path: Path, kind: str) -> None:
    with refuses(OSError):
        open_regular(special(tmp_path, kind))


def test_a_fifo_that_takes_the_place_of_a_file_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a path and its opening, the file may be exchanged."""
    regular = tmp_path / "file"
    regular.touch()
    state = regular.stat()
    fifo = special(tmp_path, "a FIFO")
    monkeypatch.setattr(Path, "stat", lambda path, **_: state)
    with refuses(OSError):
        open_regular(fifo)


def test_a_stream_without_end_is_not_read_to_its_end() -> None:
    with Path("/dev/zero").open("rb") as endless, refuses(OSError):
        read_at_most(endless, "/dev/zero", 1 << 20)


@pytest.mark.parametrize("name", ["a FIFO", "a socket", "a device"])
def test_a_special_file_is_no_model(tmp_path: Path, name: str) -> None:
    with refuses(ModelError):
        registry.find(special(tmp_path, name))
