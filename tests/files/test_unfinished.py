"""Files appear whole or not at all, and those that killed processes left are deleted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from edgespec.errors import Cancelled, UsageError
from edgespec.files.unfinished import SUFFIX, scratch_folder, sweep, unfinished_file

pytest.importorskip("fcntl", reason="there are no such locks here")

WRITE = """
import sys
from pathlib import Path
from edgespec.files import unfinished
with getattr(unfinished, sys.argv[1])(Path(sys.argv[2])) as part:
    if isinstance(part, Path):
        (part / "weights").write_bytes(bytes(1000))
    else:
        part.write(bytes(100_000))
        part.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(kind: str, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a part of `out` until it is killed."""
    command = [sys.executable, "-c", WRITE, kind, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def left_by_a_killed_process(kind: str, out: Path) -> None:
    with another_process(kind, out) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    for part in parts(out.parent if kind == "unfinished_file" else out):
        os.utime((out.parent if kind == "unfinished_file" else out) / part, (1, 1))


each_kind = pytest.mark.parametrize(
    ("kind", "place"), [("unfinished_file", "one"), ("scratch_folder", "")]
)


def parts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(SUFFIX)]


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"before")
    with unfinished_file(out) as file:
        file.write(b"complete")
        assert out.read_bytes() == b"before"
    assert out.read_bytes() == b"complete"
    assert parts(tmp_path) == []


def test_nothing_is_left_of_what_failed(tmp_path: Path) -> None:
    def write_half() -> None:
        with unfinished_file(tmp_path / "out") as file, scratch_folder(tmp_path) as part:
            file.write(b"half")
            (part / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert list(tmp_path.iterdir()) == []


@each_kind
def test_what_a_killed_process_left_is_gone_when_the_next_one_writes_there(
    tmp_path: Path, kind: str, place: str
) -> None:
    left_by_a_killed_process(kind, tmp_path / place)
    assert parts(tmp_path)
    with unfinished_file(tmp_path / "two") as file:
        assert len(parts(tmp_path)) == 1
        file.write(b"complete")
    assert not parts(tmp_path)


@each_kind
def test_what_a_living_process_writes_is_left_alone(tmp_path: Path, kind: str, place: str) -> None:
    with another_process(kind, tmp_path / place):
        written = parts(tmp_path)
        sweep(tmp_path)
        assert parts(tmp_path) == written != []


def test_a_file_has_the_rights_that_files_have_here(tmp_path: Path) -> None:
    (tmp_path / "ordinary").touch()
    with unfinished_file(tmp_path / "out"):
        pass
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_kept_folder_stays_where_its_work_is_interrupted(tmp_path: Path) -> None:
    def work(error: BaseException | None) -> list[str]:
        with scratch_folder(tmp_path, kept_as="out") as part:
            found = [path.name for path in part.iterdir()]
            (part / "half").touch()
            with (
                pytest.raises(UsageError, match="another process"),
                scratch_folder(tmp_path, "out"),
            ):
                pass
            if error:
                raise error
        return found

    for error in (KeyboardInterrupt(), Cancelled("stopped")):
        with pytest.raises(type(error)):
            work(error)
        (part,) = parts(tmp_path)
        os.utime(tmp_path / part, (time.time() - 3600,) * 2)
    assert work(None) == ["half"]
    with pytest.raises(ValueError, match="full"):
        work(ValueError("full"))
    assert parts(tmp_path) == []
    with pytest.raises(KeyboardInterrupt):
        work(KeyboardInterrupt())
    os.utime(tmp_path / part, (1, 1))
    sweep(tmp_path)
    assert parts(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs procfs")
@pytest.mark.parametrize("write", [unfinished_file, lambda out: scratch_folder(out.parent)])
def test_a_folder_in_which_nothing_can_be_made_is_an_error_at_once(
    write: Callable[[Path], AbstractContextManager[object]],
) -> None:
    with pytest.raises(FileNotFoundError), write(Path("/proc/self/x")):
        pass
