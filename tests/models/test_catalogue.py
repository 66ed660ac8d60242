"""Names of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.files import cache_folder
from edgespec.models import catalogue, packaged
from edgespec.models.catalogue import (
    cached,
    embedded,
    find,
    known,
)
from edgespec.models.embedded import EmbeddedFile, EmbeddedModel, Manifest, embedded_pair
from edgespec.settings.config import LoadSettings
from sentences import refuses

PAIR = embedded_pair()


@pytest.fixture(autouse=True)
def cached_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "edgespec"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def two_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest with a target that is there as GGUF and as an ONNX export."""

    def described(name: str, *files: tuple[str, str, str]) -> EmbeddedModel:
        return EmbeddedModel(
            name=name,
            parameters=7,
            context_length=8,
            files=tuple(
                EmbeddedFile(
                    file=file, format=form, quantization=kind, sha256="ab" * 32, size_bytes=3
                )
                for file, form, kind in files
            ),
        )

    manifest = Manifest(
        licence="PSF-2.0",
        vocabulary=4,
        target=described(
            "big",
            ("big-f16.gguf", "gguf", "F16"),
            ("big-q8_0.gguf", "gguf", "Q8_0"),
            ("big-onnx/model.onnx", "onnx", "F32"),
            ("big-onnx/tokenizer.json", "onnx", "F32"),
        ),
        draft=described("small", ("small-q8_0.gguf", "gguf", "Q8_0")),
    )
    monkeypatch.setattr(catalogue, "manifest", lambda: manifest)
    monkeypatch.setattr(catalogue, "models_folder", lambda: tmp_path)
    monkeypatch.setattr(packaged, "models", dict)
    return tmp_path


@pytest.mark.parametrize("name", ["embedded", "target", "edgespec-target", "edgespec-target-q8_0"])
def test_the_embedded_target_has_several_names(name: str) -> None:
    assert find(name) == PAIR.target


def test_a_cached_model_is_named_like_its_file(cached_models: Path) -> None:
    (cached_models / "big.gguf").write_bytes(b"")
    assert find("big") == cached_models / "big.gguf"


def test_a_name_wins_over_a_file_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script must not break where a folder is called `target`."""
    monkeypatch.chdir(tmp_path)
    Path("target").mkdir()
    assert find("target") == PAIR.target
    assert find("./target") == Path("target")


def test_an_unknown_name_is_a_model_error_that_names_the_nearest() -> None:
    with refuses(ModelError):
        find("drft")


def test_the_default_form_bears_the_models_name(two_forms: Path) -> None:
    names = {model.name: model.path.name for model in embedded()}
    assert names == {
        "big": "big-q8_0.gguf",
        "big-f16": "big-f16.gguf",
        "big-onnx": "big-onnx",
        "small": "small-q8_0.gguf",
    }


def test_an_onnx_export_is_a_folder_with_all_its_files(two_forms: Path) -> None:
    export = next(model for model in embedded() if model.format == "onnx")
    assert export.path == two_forms / "big-onnx"
    assert [file.name for file in export.files] == ["model.onnx", "tokenizer.json"]


def test_a_model_is_known_by_its_place() -> None:
    found = known(PAIR.draft)
    assert found is not None and found.role == "draft"
    assert known(Path(__file__)) is None


def test_the_cache_holds_gguf_files_and_onnx_folders(cached_models: Path) -> None:
    for name in ("b.gguf", ".a.gguf.12.part", ".hidden.gguf", "notes.txt"):
        (cached_models / name).write_bytes(b"")
    for name, file in (("export", "model.onnx"), ("other", "readme")):
        (cached_models / name).mkdir()
        (cached_models / name / file).write_bytes(b"")
    assert [(model.name, model.format) for model in cached()] == [
        ("b", "gguf"),
        ("export", "onnx"),
    ]


def test_a_relative_cache_folder_is_ignored_as_the_specification_wants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder.folder() == tmp_path / ".cache" / "edgespec"


def test_a_cache_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/1/nowhere")
    with refuses(EdgespecError):
        cache_folder.make_folder()


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert not cache_folder.models()
    with refuses(EdgespecError):
        cache_folder.make_folder()


@pytest.mark.parametrize(
    "name",
    [
        "https://hub.example/m.gguf",
        "someone/model-GGUF",
        "~nobody-at-all/m.gguf",
        "x" * 300,
    ],
)
def test_what_is_no_model_here_is_told_what_to_do(name: str) -> None:
    with refuses(ModelError):
        find(name)


def test_a_folder_with_one_gguf_model_is_that_model(tmp_path: Path) -> None:
    model = tmp_path / "m-Q4_0-00001-of-00002.gguf"
    for name in (model.name, "m-Q4_0-00002-of-00002.gguf", "mmproj-m-F16.gguf", "mtp-m-Q8_0.gguf"):
        (tmp_path / name).touch()
    assert find(str(tmp_path)) == LoadSettings(model=tmp_path).model == model
    (tmp_path / "n.gguf").touch()
    with refuses(UsageError):
        find(str(tmp_path))


def test_in_a_cache_where_nobody_may_look_nothing_is_found(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + "x" * 300)  # fails for root, too
    assert not cache_folder.models()
