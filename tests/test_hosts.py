"""Processes of other people's making, in which a text is written as in any other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.models.embedded import embedded_pair

WRITE = """
import os, sys
import edgespec
out, folder = map(os.fsencode, sys.argv[1:])
paths = [os.path.join(os.fsdecode(folder), name) for name in ("target.gguf", "draft.gguf")]
settings = edgespec.LoadSettings(model=paths[0], draft=paths[1], memory_budget="600MiB")
with edgespec.load(settings) as session:
    text = session.generate("def gcd(a, b):", max_tokens=4).text
with open(out, "wb") as file:
    file.write(text.encode())
"""

FROM_A_THREAD = """
import threading
import edgespec
from edgespec.models.embedded import embedded_pair

def write():
    threading.main_thread().join()
    pair = embedded_pair()
    settings = edgespec.LoadSettings(model=pair.target, draft=pair.draft, memory_budget="600MiB")
    with edgespec.load(settings) as session:
        print(len(session.generate("def gcd(a, b):", max_tokens=9).tokens))

threading.Thread(target=write).start()
"""


def written(folder: Path, models: bytes, *flags: str, shell: str = "", **environ: str) -> str:
    """Text of a process that the shell starts after these commands."""
    place = os.path.join(os.fsencode(folder), models)  # noqa: PTH118 - no path has such bytes
    os.mkdir(place)  # noqa: PTH102
    pair = embedded_pair()
    for name, path in ((b"target.gguf", pair.target), (b"draft.gguf", pair.draft)):
        shutil.copyfile(os.fsencode(path), os.path.join(place, name))  # noqa: PTH118
    out = folder / "written"
    command = [sys.executable, *flags, "-c", WRITE, str(out), os.fsdecode(place)]
    kept = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        ["/bin/sh", "-c", f'{shell} exec "$@"', "sh", *command],
        cwd=folder,
        env=kept | environ,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    return out.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_host_that_takes_each_warning_for_an_error_hears_none(tmp_path: Path) -> None:
    """Files of the kernel were read in the locale's encoding, of which Python can warn."""
    strict = ("-X", "dev", "-X", "warn_default_encoding", "-W", "error", "-I")
    assert written(tmp_path, b"models", *strict)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are Unicode, folders stay")
def test_a_host_may_lack_streams_home_locale_and_current_folder(tmp_path: Path) -> None:
    models = b"ein gr\xf6\xdferer Ordner \xff " + b"x" * 180
    (tmp_path / "gone").mkdir()
    assert written(
        tmp_path,
        models,
        shell="cd gone; rmdir ../gone; exec <&- >&- 2>&-;",
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )


@pytest.mark.slow
@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 3),
    reason="these versions start no thread once the main one has ended (CPython 113964)",
)
def test_a_host_may_leave_everything_to_a_thread() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FROM_A_THREAD], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("9\n", "")
