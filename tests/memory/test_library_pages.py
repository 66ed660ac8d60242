"""Pages of libraries that are no longer needed are let go of, and come back unharmed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec import runtimes
from edgespec.errors import ModelError
from edgespec.memory import library_pages
from edgespec.session import session
from edgespec.session.embedder import plan_embedder

PROGRAM = """
import json
import numpy as np
from edgespec.memory import library_pages

def resident(is_changed):
    found = library_pages.mappings()
    if is_changed:
        return sum(m.changed_bytes for m in found)
    return sum(m.resident_bytes for m in found)

before, changed = resident(False), resident(True)
library_pages.release()
after, kept = resident(False), resident(True)
product = (np.arange(9.0).reshape(3, 3) @ np.eye(3)).sum()
print(json.dumps([before, after, changed, kept, product]))
"""
TOUCHED = """
import ctypes, json, mmap, sys
from pathlib import Path
import numpy._core._multiarray_umath as module
from edgespec.memory import library_pages

copy = Path(sys.argv[1]) / "library.so"
copy.write_bytes(Path(module.__file__).read_bytes())  # one write: large blocks of page cache
ctypes.CDLL(str(copy))
for _ in range(2):
    library_pages.release()
code = [m for m in library_pages.mappings() if m.path == str(copy) and m.access == "r-xp"]
middle = code[len(code) // 2]
ctypes.string_at((middle.begin + middle.end) // 2, 1)
code = [m for m in library_pages.mappings() if m.path == str(copy) and m.access == "r-xp"]
print(json.dumps([sum(m.nbytes for m in code), sum(m.resident_bytes for m in code)]))
"""
SMAPS = """\
1000000-1400000 r-xp 00000000 fe:00 1001 /lib/liba.so
Rss:                1024 kB
Anonymous:             4 kB
1400000-1800000 rw-p 00400000 fe:00 1001 /lib/liba.so
Rss:                 512 kB
Anonymous:           512 kB
2000000-6000000 r-xp 00000000 fe:00 1002 /lib/libcublas.so
Rss:               20480 kB
Anonymous:             0 kB
7000000-8000000 r--s 00000000 fe:00 1003 /models/a model.gguf
Rss:                 512 kB
Anonymous:             0 kB
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's pages")
def test_pages_are_let_go_of_and_what_was_changed_stays() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    before, after, changed, kept, product = json.loads(done.stdout)
    assert after < before / 2
    assert kept >= changed
    assert product == 36.0


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's pages")
def test_a_page_that_is_touched_makes_one_piece_resident(tmp_path: Path) -> None:
    """However large the blocks of the page cache are, as of a file that was written just now."""
    command = [sys.executable, "-c", TOUCHED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=True)
    mapped, resident = json.loads(done.stdout)
    assert mapped > 8 * library_pages.PIECE_BYTES
    assert 0 < resident <= library_pages.PIECE_BYTES


def test_files_without_code_and_large_libraries_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "smaps").write_text(SMAPS)
    found = library_pages.mappings(tmp_path)
    assert {one.path for one in found} == {"/lib/liba.so"}
    assert [(one.resident_bytes >> 10, one.changed_bytes >> 10) for one in found] == [
        (1020, 4),
        (0, 512),
    ]


@pytest.mark.parametrize("plan", [session.plan, plan_embedder])
def test_a_runtime_is_imported_when_what_was_imported_before_is_let_go_of(
    plan: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both together exceeded the smallest budget where files have just been written."""
    happened: list[str] = []

    def find(path: Path) -> runtimes.Runtime:
        happened.append("import")
        raise ModelError("found none")

    monkeypatch.setattr(library_pages, "release", lambda: happened.append("release"))
    monkeypatch.setattr(runtimes, "find", find)
    with pytest.raises(ModelError, match="found none"):
        plan(Path("a model.gguf"))
    assert happened == ["release", "import"]


@pytest.mark.slow
def test_onnxruntime_is_let_go_of_before_onnx_is_imported() -> None:
    """Both together exceeded the smallest budget where files had just been written."""
    program = """
import sys
from edgespec.memory import library_pages

imported = []
names = ("onnxruntime", "onnx")
library_pages.release = lambda: imported.append([name for name in names if name in sys.modules])

from edgespec_runtimes.onnx import runtime

print(imported)
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("[['onnxruntime']")
