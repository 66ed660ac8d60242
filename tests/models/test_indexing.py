"""`edgespec models index`, and guesses from what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import edgespec
from edgespec.cli import entry
from edgespec.engine.settings import EngineSettings
from edgespec.models.embedded import embedded_pair
from edgespec.runtimes import ModelRequest, find, vocabulary_of
from edgespec.session.loading import CORPUS, plan
from edgespec.settings.config import FallbackName

SOURCE = Path(json.__file__)
PROMPT = "def load(fp, *, cls=None, object_hook=None, parse_float=None,\n"
ONNX = Path(__file__).parents[2] / "models/edgespec-target-onnx-fp16"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("index") / "json.idx"
    assert entry.main(["models", "index", str(SOURCE.parent), str(out), "--quiet"]) == 0
    return out


def settings(index: Path | None) -> edgespec.LoadSettings:
    return edgespec.LoadSettings(
        model=embedded_pair().target, memory_budget="1GiB", ctx_size=512, lookup_cache_static=index
    )


def test_the_report_says_what_was_indexed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "json.idx"
    assert entry.main(["models", "index", str(SOURCE), str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["n_texts"] == 1
    assert report["size_bytes"] == out.stat().st_size
    assert 1000 < report["n_tokens"] < SOURCE.stat().st_size


def test_a_corpus_guesses_and_changes_no_text(index: Path) -> None:
    texts = []
    always_guessing = EngineSettings(fallback=FallbackName.FULL, step_aside=False)
    for corpus in (None, index):
        with edgespec.load(settings(corpus), always_guessing) as session:
            texts.append(session.generate(PROMPT, max_tokens=40))
    assert texts[0].tokens == texts[1].tokens
    (brought,) = (by for by in texts[1].speculation.sources if by.source == "corpus")
    assert brought.accepted > 0


def test_the_flag_plans_for_guesses_without_a_draft(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", "--no-draft", "-lcs", str(index), "--draft-max", "8", "--json"]
    assert entry.main([*arguments, "--memory-budget", "1GiB"]) == 0
    rows = {row["what"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {CORPUS, "logits (9 nodes)"} <= rows


def test_the_plan_has_a_row_for_it(index: Path) -> None:
    assert CORPUS in [row.what for row in plan(settings(index)).rows]


def test_lookup_cannot_be_both_wanted_and_not(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(["generate", "-lcs", str(index), "--no-lookup", "-p", "x"]) == 2
    assert "--no-lookup contradicts --lookup-cache-static" in capsys.readouterr().err


def test_a_file_that_is_no_index_ends_with_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.idx").write_text("nothing of the kind")
    assert entry.main(["generate", "-lcs", str(tmp_path / "x.idx"), "-p", "x", "-n", "1"]) == 3
    assert "is no index of a corpus" in capsys.readouterr().err


def test_an_index_that_is_there_is_not_overwritten(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(["models", "index", str(SOURCE), str(index)]) == 2
    assert "--force overwrites it" in capsys.readouterr().err


def test_an_index_does_not_hold_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one two three four")
    arguments = ["models", "index", str(tmp_path), str(tmp_path / "out.txt"), "--json", "--force"]
    (tmp_path / "out.txt").write_text("an older one")
    assert entry.main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["n_texts"] == 1


def test_twins_of_two_formats_share_an_index() -> None:
    tokens = []
    for path in (embedded_pair().target, ONNX):
        request = ModelRequest(path, "target", 0, max_nodes=1, max_branches=1, n_threads=1)
        prepared = find(path).prepare(request)
        with vocabulary_of(prepared) as vocabulary:
            tokens.append(vocabulary.encode(PROMPT, add_special=False))
        prepared.close()
    assert tokens[0] == tokens[1]
