"""`edgespec models adapt` around the training: which texts, which drafts, and what is left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edgespec import extras
from edgespec.cli import command_line
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import cache_folder
from edgespec.files.training_texts import TrainingText, TrainingTexts
from edgespec.models import draft_training
from edgespec.models.describe import describe
from edgespec.models.draft_training import AdaptationResult
from edgespec.models.embedded import embedded_pair
from gguf_files import STRING, tiny_llama

pytest.importorskip("llama_cpp")

PAIR = embedded_pair()
N_TEXTS = 12


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingTexts:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return TrainingTexts(cache_folder.learnt())


@pytest.fixture
def kept(cache: TrainingTexts) -> TrainingTexts:
    """Texts of different prompts, of the embedded pair."""
    keep(cache, PAIR.target)
    return cache


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[TrainingText]:
    """Instead of training the draft is copied; the texts that it would learn."""
    learnt: list[TrainingText] = []

    def train(draft, out, name, texts, n_threads, progress):
        learnt.extend(texts)
        shutil.copy(draft, out)
        progress("adapting the draft", 1.0)
        return AdaptationResult(len(texts), 10, 3, 0.5)

    monkeypatch.setattr(draft_training, "train", train)
    monkeypatch.setattr(extras, "find", lambda *package: None)
    return learnt


def keep(texts: TrainingTexts, target: Path, n: int = N_TEXTS) -> None:
    infos = describe(target).info, describe(PAIR.draft).info
    for number in range(n):
        texts.keep(*infos, target, TrainingText([100 + number, 7, 8, 9], 2))


def adapt(out: Path, *more: str) -> int:
    words = ["models", "adapt", "draft", "-o", str(out), "-n", "4", "-c", "128", "-t", "1"]
    return command_line.main([*words, *more])


def test_a_tenth_is_held_out(kept: TrainingTexts) -> None:
    data = draft_training.training_data(PAIR.draft)
    assert (len(data.learnt), len(data.held_out)) == (N_TEXTS - 1, 1)
    assert data.target == PAIR.target
    assert data.prompts == [[100, 7]]


def test_what_is_measured_is_not_learnt(kept: TrainingTexts) -> None:
    keep(kept, PAIR.target)  # every prompt twice
    data = draft_training.training_data(PAIR.draft)
    asked = {tuple(prompt) for prompt in data.prompts}
    assert not asked & {tuple(text.tokens[:2]) for text in data.learnt}


def test_without_texts_it_says_how_to_get_some() -> None:
    with pytest.raises(UsageError, match=r"no texts are kept with the draft .* with --learn first"):
        draft_training.training_data(PAIR.draft)


def test_too_few_texts_teach_nothing(cache: TrainingTexts) -> None:
    keep(cache, PAIR.target, 10)
    with pytest.raises(UsageError, match=r"10 texts are kept .*too few"):
        draft_training.training_data(PAIR.draft)


def test_of_several_targets_one_must_be_named(kept: TrainingTexts, tmp_path: Path) -> None:
    other = tiny_llama().write(tmp_path / "other.gguf")
    keep(kept, other)
    with pytest.raises(UsageError, match=r"several targets .*other\.gguf.*--learnt-with"):
        draft_training.training_data(PAIR.draft)
    assert draft_training.training_data(PAIR.draft, other).target == other


def test_a_target_that_moved_must_be_named(kept: TrainingTexts, tmp_path: Path) -> None:
    kept.forget()
    moved = Path(shutil.copy(PAIR.target, tmp_path / "t.gguf"))
    keep(kept, moved)
    moved.unlink()
    with pytest.raises(UsageError, match=r"is not at .*t\.gguf: name it with --learnt-with"):
        draft_training.training_data(PAIR.draft)
    assert draft_training.training_data(PAIR.draft, PAIR.target).target == PAIR.target


@pytest.mark.slow
def test_it_shows_the_check_before_and_after(
    kept: TrainingTexts,
    trained: list[TrainingText],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "new.gguf"
    assert adapt(out) == 0
    said = capsys.readouterr().out
    assert said.index("Before:") < said.index("After:") < said.index("Tokens per pass with 32")
    assert said.count("top-1 agreement") == 2
    assert out.read_bytes() == PAIR.draft.read_bytes() and len(trained) == N_TEXTS - 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_its_json_has_both_checks(
    kept: TrainingTexts,
    trained: list[TrainingText],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "new.gguf"
    assert adapt(out, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["before"]["trees"] == report["after"]["trees"]
    assert (report["path"], report["after"]["draft"]) == (str(out), str(out))
    assert report["trained"]["n_corrections"] == 3


def test_nothing_is_overwritten(
    kept: TrainingTexts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new.gguf"
    out.write_text("mine")
    assert adapt(out) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert out.read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        pytest.param(EdgespecError("no"), 1, marks=pytest.mark.slow),
    ],
)
def test_what_ends_training_leaves_nothing(
    kept: TrainingTexts,
    trained: list[TrainingText],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
) -> None:
    def train(draft, out, *more):
        out.write_text("half")
        raise error

    monkeypatch.setattr(draft_training, "train", train)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert adapt(folder / "new.gguf") == code
    assert not list(folder.iterdir())


def test_other_architectures_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_llama()
    model.metadata["general.architecture"] = (STRING, "qwen3")
    path = model.write(tmp_path / "q.gguf")
    assert command_line.main(["models", "adapt", str(path), "-o", str(tmp_path / "n.gguf")]) == 3
    assert "of the architecture qwen3" in capsys.readouterr().err
    assert (
        command_line.main(["models", "adapt", str(tmp_path), "-o", str(tmp_path / "n.gguf")]) == 3
    )


def test_without_pytorch_it_says_how_to_install_it(
    kept: TrainingTexts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert adapt(tmp_path / "new.gguf") == 2
    assert "adapting a draft needs PyTorch" in capsys.readouterr().err


@pytest.mark.slow
def test_a_failing_process_is_one_error(tmp_path: Path) -> None:
    source = tmp_path / "missing.gguf"
    with pytest.raises(EdgespecError):
        draft_training.train(source, tmp_path / "o.gguf", "o", [], 1, lambda what, share: None)
