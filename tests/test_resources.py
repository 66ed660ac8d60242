"""The embedded models and presets, found in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.config import GenerateSettings, LoadSettings, read_config
from edgespec.errors import ModelError, UsageError
from edgespec.resources import embedded_pair, find_config, preset_names

MANIFEST = '[target]\nfile = "t.gguf"\nsha256 = "ab"\n[draft]\nfile = "d.gguf"\n'


def test_a_checkout_has_the_models_it_describes():
    pair = embedded_pair()
    assert pair.target.is_file()
    assert pair.draft.is_file()


@pytest.mark.parametrize("folder", ["edgespec/_models", "models"])
def test_models_lie_inside_an_installed_package_or_beside_a_checkout(tmp_path: Path, folder: str):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "embedded.toml").write_text(MANIFEST)
    pair = embedded_pair(tmp_path / "edgespec")
    assert (pair.target, pair.draft) == (tmp_path / folder / "t.gguf", tmp_path / folder / "d.gguf")


def test_missing_models_are_a_model_error(tmp_path: Path):
    with pytest.raises(ModelError, match="name a model with -m"):
        embedded_pair(tmp_path / "edgespec")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name: str):
    settings = {"model": "m.gguf", "draft": "d.gguf"} | read_config(find_config(name))
    known = LoadSettings.model_fields
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
    with pytest.raises(UsageError, match=f"did you mean '{name}'"):
        find_config(name + "x")
