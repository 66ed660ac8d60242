"""A third runtime is one object behind an entry point: everything else works with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest

import edgespec
from edgespec import extras, registry
from edgespec.bench.modes import BenchDraft
from edgespec.bench.tuned_modes import Variant, variants
from edgespec.cli import command_line
from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MIB, MemoryPlan, MemoryRow
from edgespec.memory.needs import BatchNeeds, ModelNeeds
from edgespec.ports import Progress
from edgespec.registry import ModelRequest, PreparedModel, Runtime
from edgespec.settings import options
from edgespec.settings.config import read_config
from edgespec.settings.options import Flag, RuntimeOptions
from edgespec.values import ModelDetails
from fake_model import FakeModel, FakeVocabulary, fixed_text
from prepared_contract import PreparedContract
from sentences import refuses

TEXT = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
N_VOCAB = 12


class LetterOptions(RuntimeOptions):
    kind: ClassVar[str] = "a model of letters"

    letters: Annotated[
        Literal["small", "capital"], Flag("that are written (default: small)", "KIND", "-l3")
    ] = "small"


OPTIONS = LetterOptions


class PreparedLetters(PreparedModel):
    """A model that writes the letters of a fixed text; nothing is in its file."""

    enforced = True

    def __init__(self, request: ModelRequest) -> None:
        self.seconds: dict[str, float] = {}
        self._request = request
        self._model = FakeModel(
            fixed_text(TEXT, N_VOCAB, 4), N_VOCAB, max_nodes=request.max_nodes, n_ctx=64
        )
        if LetterOptions.of(request.options).letters == "capital":
            self._model.vocabulary = FakeVocabulary(N_VOCAB, pieces=self.tokens())
        self.info = self._model.info

    def tokens(self) -> Sequence[bytes]:
        return [bytes([65 + n]) for n in range(N_VOCAB)]

    def needs(self) -> ModelNeeds:
        rows = (MemoryRow(self._request.owner, "letters", MIB),)
        return ModelNeeds(fixed=(), batches=(BatchNeeds(32, rows),), resident=())

    def load(self, plan: MemoryPlan | None, progress: Progress | None = None) -> FakeModel:
        return self._model

    def cancel(self) -> None:
        """Loading takes no time."""

    def close(self) -> None:
        """Nothing is open."""


class LetterRuntime(Runtime):
    name = "letters"

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".letters"

    def prepare(self, request: ModelRequest) -> PreparedLetters:
        return PreparedLetters(request)


LETTERS = LetterRuntime()


@pytest.fixture(autouse=True)
def only_letters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = (EntryPoint("letters", f"{__name__}:LETTERS", registry.ENTRY_POINTS),)
    by_group = {registry.ENTRY_POINTS: found}
    for asking in (extras, options, registry):
        monkeypatch.setattr(asking, "entry_points", lambda group: by_group.get(group, ()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "alphabet.letters"
    path.write_text("nothing")
    return str(path)


class TestLettersKeepTheContract(PreparedContract):
    """A model that is never paged keeps the contract of prepared models."""

    @pytest.fixture
    def prepare(self, model: str) -> Callable[[], PreparedLetters]:
        return lambda: PreparedLetters(ModelRequest(Path(model), "target", 64, 16, 8, 1))


def test_a_session_runs_it_with_and_without_a_draft(model: str) -> None:
    texts = []
    for draft in (None, model):
        settings = edgespec.LoadSettings(model=model, draft=draft, memory_budget="1GiB")
        with edgespec.load(settings) as session:
            texts.append(session.generate([1, 2, 3, 4], max_tokens=12).tokens)
    assert texts[0] == texts[1] == (*TEXT, *TEXT[:2])


def test_the_command_line_runs_it(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "-m", model, "-md", model, "-p", "abcd", "-n", "10", "--json"]
    assert command_line.main([*arguments, "--memory-budget", "1GiB"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "acegibdfhj"


def test_its_rows_are_in_the_plan(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["plan", "-m", model, "--memory-budget", "1GiB"]) == 0
    assert "letters" in capsys.readouterr().out


def test_its_own_option_is_a_flag_and_reaches_it(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "-m", model, "-p", "abcd", "-n", "10", "--letters", "capital"]
    assert command_line.main([*arguments, "--memory-budget", "1GiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "ACEGIBDFHJ"


def test_its_own_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["generate", "--help-all"]) == 0
    told = capsys.readouterr().out
    assert "for a model of letters:" in told
    flags = "-l3 KIND, --letters KIND" if sys.version_info < (3, 13) else "-l3, --letters KIND"
    assert flags in told and "-ctk" not in told


def test_its_own_option_is_an_argument_and_a_key_of_a_file(model: str, tmp_path: Path) -> None:
    capital = {"letters": LetterOptions(letters="capital")}
    given = {"model": model, "letters": "capital"}
    assert edgespec.LoadSettings.model_validate(given).options == capital
    assert edgespec.LoadSettings(model=Path(model), options=capital).options == capital
    file = tmp_path / "settings.toml"
    file.write_text('letters = "capital"')
    assert read_config(file) == {"letters": "capital"}


def test_its_own_option_is_refused_for_models_of_others(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LETTERS, "name", "digits", raising=False)
    settings = edgespec.LoadSettings.model_validate({"model": model, "letters": "capital"})
    with refuses(edgespec.UsageError):
        edgespec.plan(settings)


def test_a_draft_that_a_gpu_could_compute_is_tuned_there(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draft_on_gpu(options: LetterOptions, n_layers: int) -> dict[str, LetterOptions]:
        return {f"--letters capital ({n_layers})": LetterOptions(letters="capital")}

    def on_gpu() -> list[Variant]:
        load = edgespec.LoadSettings(model=Path(model), draft=Path(model))
        drafts = [BenchDraft(Path(model), "letters")]
        found = variants(load, EngineSettings(), drafts, ())
        return [one for one in found if "letters" in one.mode.changed]

    assert not on_gpu()
    monkeypatch.setattr(LetterOptions, "draft_on_gpu", draft_on_gpu)
    details = ModelDetails(format="letters", layers=3)
    for name, answer in {"gpu": lambda: "a GPU", "describe": lambda _: details}.items():
        monkeypatch.setattr(LETTERS, name, answer, raising=False)
    (found,) = on_gpu()
    assert found.mode.changed == {"letters": "capital"}
