"""The embedded models and presets, found in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.errors import ModelError, UsageError
from edgespec.models.embedded import (
    embedded_pair,
    find_config,
    manifest,
    models_folder,
    preset_names,
)
from edgespec.settings.config import GenerateSettings, LoadSettings, read_config
from sentences import refuses

SHA256 = "ab" * 32
MANIFEST = f"""\
licence = "PSF-2.0"
vocabulary = 4

[target]
name = "big"
parameters = 7
context_length = 8

[[target.files]]
file = "t-onnx/model.onnx"
format = "onnx"
quantization = "F32"
sha256 = "{SHA256}"
size_bytes = 30

[[target.files]]
file = "t.gguf"
format = "gguf"
quantization = "Q8_0"
sha256 = "{SHA256}"
size_bytes = 9

[draft]
name = "small"
parameters = 3
context_length = 8

[[draft.files]]
file = "d.gguf"
format = "gguf"
quantization = "Q8_0"
sha256 = "{SHA256}"
size_bytes = 5
"""


@pytest.mark.parametrize("folder", ["edgespec/_models", "models"])
def test_models_lie_inside_an_installed_package_or_beside_a_checkout(tmp_path: Path, folder: str):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "embedded.toml").write_text(MANIFEST)
    pair = embedded_pair(tmp_path / "edgespec")
    assert (pair.target, pair.draft) == (tmp_path / folder / "t.gguf", tmp_path / folder / "d.gguf")


def test_the_pair_is_gguf_in_q8_0_among_other_forms(tmp_path: Path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "embedded.toml").write_text(MANIFEST.replace("Q8_0", "F16"))
    with refuses(ModelError):
        embedded_pair(tmp_path / "edgespec")


@pytest.mark.parametrize(
    "change",
    [("vocabulary = 4", "vocabulary = many"), ("licence", "license"), ("onnx", "tflite")],
    ids=["TOML", "key", "value"],
)
def test_a_damaged_manifest_is_a_model_error(tmp_path: Path, change: tuple[str, str]):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "embedded.toml").write_text(MANIFEST.replace(*change))
    with refuses(ModelError):
        embedded_pair(tmp_path / "edgespec")


def test_the_manifest_describes_the_files_that_are_there():
    for model in manifest().models().values():
        for file in model.files:
            assert (models_folder() / file.file).stat().st_size == file.size_bytes


def test_missing_models_are_a_model_error(tmp_path: Path):
    with refuses(ModelError):
        embedded_pair(tmp_path / "edgespec")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name: str):
    settings = {"model": "m.gguf", "draft": "d.gguf"} | read_config(find_config(name))
    known = LoadSettings.known()
    LoadSettings.model_validate({key: settings[key] for key in settings if key in known})
    GenerateSettings.model_validate({key: settings[key] for key in settings if key not in known})


def test_a_file_goes_before_a_preset_of_its_name(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = preset_names()[0]
    assert find_config(name).is_absolute()
    Path(name).touch()
    assert find_config(name) == Path(name)


def test_an_unknown_preset_is_refused_with_the_nearest():
    name = preset_names()[0]
    with refuses(UsageError):
        find_config(name + "x")
