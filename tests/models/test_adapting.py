"""`edgespec models adapt` around the training: which prompts, which drafts, and what is left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edgespec import extras
from edgespec.cli import command_line
from edgespec.errors import EdgespecError, UsageError
from edgespec.models import draft_training
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings
from edgespec.values import TrainingText
from gguf_files import STRING, tiny_llama

pytest.importorskip("llama_cpp")

PAIR = embedded_pair()
PROMPTS = [f"def f{n}(" for n in range(12)]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[TrainingText]:
    """Instead of training the draft is copied; the texts that it would learn."""
    learnt: list[TrainingText] = []

    def train(draft, out, name, texts, n_threads, progress):
        learnt.extend(texts)
        shutil.copy(draft, out)
        progress("adapting the draft", 1.0)
        return 0.5

    monkeypatch.setattr(draft_training, "train", train)
    monkeypatch.setattr(extras, "find", lambda *package: None)
    return learnt


def adapt(out: Path, *more: str, draft: object = "draft") -> int:
    prompts = out.parent / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS))
    words = ["models", "adapt", "target", str(draft), "-o", str(out), "-n", "4", "-c", "128"]
    return command_line.main([*words, "-t", "1", "--prompts", str(prompts), *more])


def test_what_is_measured_is_not_learnt() -> None:
    learnt, held_out = draft_training.divided([*PROMPTS, *PROMPTS])
    assert (len(learnt), len(held_out)) == (len(PROMPTS) - 1, 1)
    assert not {*learnt} & {*held_out}


def test_too_few_prompts_teach_nothing() -> None:
    with pytest.raises(UsageError, match="10 different prompts are too few"):
        draft_training.divided(PROMPTS[:10])


def test_answers_have_what_else_the_target_might_have_said() -> None:
    settings = LoadSettings(model=PAIR.target, threads=1)
    texts = draft_training.answers(settings, PROMPTS[:2], 4, lambda what, share: None)
    for text in texts:
        assert len(text.said) == len(text.tokens) - text.n_prompt == 4
        for token, said in zip(text.tokens[text.n_prompt :], text.said, strict=True):
            assert said[0][0] == token and len(said) == draft_training.N_SAID


@pytest.mark.slow
def test_it_shows_the_check_before_and_after(
    trained: list[TrainingText], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new.gguf"
    assert adapt(out) == 0
    said = capsys.readouterr().out
    assert said.index("Before:") < said.index("After:") < said.index("Tokens per pass with 16")
    assert said.count("top-1 agreement") == 2
    assert out.read_bytes() == PAIR.draft.read_bytes() and len(trained) == len(PROMPTS) - 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_its_json_has_both_checks(
    trained: list[TrainingText], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new.gguf"
    assert adapt(out, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["before"]["agreement"] == report["after"]["agreement"]
    assert (report["path"], report["after"]["draft"]) == (str(out), str(out))
    assert report["trained"] == {"n_texts": 11, "n_tokens": 44, "loss": 0.5}


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert [path.name for path in folder.iterdir()] == ["prompts.txt"]


def test_other_architectures_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_llama()
    model.metadata["general.architecture"] = (STRING, "qwen3")
    path = model.write(tmp_path / "q.gguf")
    assert adapt(tmp_path / "n.gguf", draft=path) == 3
    assert "of the architecture qwen3" in capsys.readouterr().err
    assert adapt(tmp_path / "n.gguf", draft=tmp_path) == 3


def test_without_pytorch_it_says_how_to_install_it(
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
