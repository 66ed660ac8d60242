"""Presets: what they say, where they lie, for whom they are found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from edgespec import runtimes
from edgespec.cli.invocation import CommandSettings, settings_from
from edgespec.errors import EdgespecError, UsageError
from edgespec.memory import process
from edgespec.settings.config import LoadSettings
from edgespec.settings.toml_file import read_config
from edgespec.tuning import presets
from edgespec_runtimes.gguf.options import GgufOptions
from small_files import files_of_at_most

pytestmark = pytest.mark.usefixtures("own_cache_folder")

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def load(tmp_path: Path) -> LoadSettings:
    for name in ("big.gguf", "small.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    return LoadSettings(
        model=tmp_path / "big.gguf", draft=tmp_path / "small.gguf", memory_budget="1GiB"
    )


def keep(load: LoadSettings, **settings: object) -> None:
    presets.save(presets.toml(settings, ["why"]), presets.path_of(load))


def request(load: LoadSettings, **flags: str) -> CommandSettings:
    given = {"model": str(load.model), "draft": str(load.draft), "memory_budget": "1GiB"}
    return settings_from(argparse.Namespace(**given | flags))


def test_config_takes_what_is_written(tmp_path: Path):
    path = tmp_path / "a preset.toml"
    settings = {"model": tmp_path / 'with "quotes".gguf', "threads": 3, "no_overlap": True}
    presets.save(presets.toml(settings, ["two\nlines"]), path)
    assert read_config(path) == settings
    assert path.read_text().startswith("# two\n# lines\n")


def test_it_is_found_again_and_a_note_says_so(load: LoadSettings):
    keep(load, threads=1, threads_draft=2, draft_max=8, no_overlap=True)
    found = request(load)
    assert (found.load.threads, found.load.threads_draft) == (1, 2)
    assert (found.generate.draft_max, found.generate.no_overlap) == (8, True)
    assert any("--no-tuned" in note for note in found.notes)


def test_a_flag_wins_over_it(load: LoadSettings):
    keep(load, threads=1, draft_max=8)
    found = request(load, threads="3")
    assert (found.load.threads, found.generate.draft_max) == (3, 8)


@pytest.mark.parametrize(
    "flags", [{"no_tuned": "yes"}, {"memory_budget": "2GiB"}, {"ctx_size": "64"}]
)
def test_it_is_for_nothing_else(load: LoadSettings, flags: dict[str, str]):
    keep(load, threads=1)
    assert request(load, **flags).load.threads is None


def test_a_config_file_is_all_that_counts(load: LoadSettings, tmp_path: Path):
    keep(load, threads=1)
    (tmp_path / "mine.toml").write_text("draft-max = 5\n")
    found = request(load, config=str(tmp_path / "mine.toml"))
    assert (found.load.threads, found.generate.draft_max) == (None, 5)


def test_a_model_that_was_replaced_is_another(load: LoadSettings):
    keep(load, threads=1)
    load.model.write_bytes(b"GGUF, longer")
    assert request(load).load.threads is None


def test_a_pair_that_is_faster_without_its_draft_decodes_alone(load: LoadSettings):
    keep(load, no_draft=True, threads=2)
    found = request(load)
    assert (found.load.draft, found.load.threads) == (None, 2)


def test_flags_about_the_draft_keep_it(load: LoadSettings):
    keep(load, no_draft=True)
    assert request(load, draft_max="8").load.draft == load.draft


def test_what_changes_the_text_is_never_taken_from_it(load: LoadSettings):
    keep(load, cache_type_k="q8_0", batch_size=32, n_gpu_layers=3, threads=1)
    found = request(load).load
    assert (dict(found.options), found.batch_size, found.threads) == ({}, None, 1)


class FakeRuntime:
    """A runtime with a GPU, or without."""

    def __init__(self, gpu: str | None) -> None:
        self._gpu = gpu

    def gpu(self) -> str | None:
        return self._gpu


@pytest.mark.parametrize(("gpu", "n_layers"), [("a GPU", 25), (None, 0)])
def test_a_draft_goes_to_the_gpu_that_is_there(
    load: LoadSettings, gpu: str | None, n_layers: int, monkeypatch: pytest.MonkeyPatch
):
    keep(load, n_gpu_layers_draft=25, threads=1)
    monkeypatch.setattr(runtimes, "find", lambda _: FakeRuntime(gpu))
    found = request(load)
    assert GgufOptions.of(found.load.options.get("gguf")).gpu_layers_of("draft") == n_layers
    assert found.load.threads == 1
    assert any("is not on a GPU" in note for note in found.notes) == (gpu is None)


def test_layers_of_the_draft_do_not_tell_presets_apart(load: LoadSettings):
    keep(load, threads=1)
    assert request(load, n_gpu_layers_draft="0").load.threads == 1
    assert request(load, n_gpu_layers="3").load.threads is None


@pytest.mark.parametrize("damage", [b"\xff", b"threads = ", b"unknown = 3"])
def test_one_that_cannot_be_read_is_none(load: LoadSettings, damage: bytes):
    keep(load, threads=1)
    presets.path_of(load).write_bytes(damage)
    assert request(load).load.threads is None


def test_what_cannot_be_written_is_said_with_another_way(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgespecError, match="--out FILE"):
        presets.save("", tmp_path / "file" / "preset.toml")


def test_a_place_that_will_not_do_is_refused_before_anything_is_measured(tmp_path: Path):
    with pytest.raises(UsageError, match="is a folder"):
        presets.check_writable(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        presets.check_writable(tmp_path / "none" / "preset.toml")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of files")
def test_a_disk_without_room_for_a_preset_is_refused_before_anything_is_measured(tmp_path: Path):
    with files_of_at_most(100), pytest.raises(EdgespecError, match=r"preset\.toml cannot .*large"):
        presets.check_writable(tmp_path / "preset.toml")
    assert not list(tmp_path.iterdir())


def test_trying_a_place_leaves_nothing(tmp_path: Path):
    presets.check_writable(tmp_path / "preset.toml")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [path.stem for path in sorted(CONFIGS.glob("*.toml"))])
def test_a_shipped_preset_is_understood(load: LoadSettings, name: str):
    models = {"model": str(load.model), "draft": str(load.draft)}
    found = settings_from(argparse.Namespace(config=name, **models))
    assert process.resolve_budget(found.load.memory_budget) >= 2 << 30
