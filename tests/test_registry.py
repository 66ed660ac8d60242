"""The runtime of a model, and the error where none knows it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import edgespec
from edgespec import registry
from edgespec.errors import ModelError
from sentences import refuses


class Knowing:
    name = "knowing"

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".known"


KNOWING = Knowing()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; the runtimes are one that knows `.known` and one whose library is missing."""
    entries = (
        EntryPoint("knowing", f"{__name__}:KNOWING", registry.ENTRY_POINTS),
        EntryPoint("absent", "no_such_library:runtime", registry.ENTRY_POINTS),
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    path = tmp_path / "model.known"
    path.touch()
    return path


def test_a_model_is_found_where_another_runtime_is_not_installed(model: Path) -> None:
    assert registry.find(model) is KNOWING


@pytest.mark.slow
def test_a_library_that_the_system_lacks_is_not_installed_with_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's minimal images have no libgomp, and llama.cpp's library was not loaded there."""
    (tmp_path / "lacking.py").write_text("raise ImportError('libgomp.so.1: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    entries = (EntryPoint("lacking", "lacking:runtime", registry.ENTRY_POINTS),)
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    with refuses(ModelError):
        registry.find(tmp_path)


def test_the_runtime_after_which_a_models_files_are_named_is_asked_first(tmp_path: Path) -> None:
    """Every ONNX model imported llama.cpp first, which was asked first."""
    (tmp_path / "model.onnx").touch()
    code = (
        "import sys; from pathlib import Path; from edgespec import registry;"
        "print(registry.find(Path(sys.argv[1])).name, 'llama_cpp' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["onnx", "False"]


def test_a_runtime_that_is_not_wanted_is_not_imported(model: Path, monkeypatch) -> None:
    entries = (
        EntryPoint("knowing", f"{__name__}:KNOWING", registry.ENTRY_POINTS),
        EntryPoint("later", "colorsys:runtime", registry.ENTRY_POINTS),
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert registry.find(model) is KNOWING
    assert "colorsys" not in sys.modules


def test_a_path_that_no_file_can_have_is_a_model_error(tmp_path: Path) -> None:
    """An OSError came through, with the whole name in it."""
    with refuses(ModelError):
        registry.find(tmp_path / ("x" * 300))
    with refuses(ModelError):
        edgespec.load("x" * 300)


@pytest.mark.parametrize(
    "content",
    [
        "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n",
        "\n<!DOCTYPE html><title>Log in</title>",
    ],
)
@pytest.mark.parametrize("name", ["m.gguf", "folder/model.onnx_data"])
def test_what_stands_in_the_place_of_a_download_is_named(tmp_path, content, name) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    with refuses(ModelError):
        registry.describe(file if name == "m.gguf" else file.parent)
