"""`edgespec models ...` on the embedded pair: what a user and a script get."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import command_line
from edgespec.cli.commands.models import checking
from edgespec.memory.budget import MemoryPlan
from edgespec.models.embedded import embedded_pair, manifest
from edgespec.models.pair_fit import PairFit, SourcesFit
from edgespec.session import session
from edgespec.values import SourceStats
from fake_model import FakeModel, random_language
from gguf_files import tiny_llama
from port_calls import prefill
from zoo_files import write_guessing

pytest.importorskip("llama_cpp")

PAIR = embedded_pair()
MIB = 1 << 20
PLAN = MemoryPlan(
    budget_bytes=0,
    rows=(),
    segments=(),
    pinned=frozenset(),
    ring_bytes=0,
    paged=False,
    smallest_bytes=0,
)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "edgespec"
    folder.mkdir()
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("def gcd(a, b):\n\nimport os\n")
    return path


def models(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert command_line.main(["models", *map(str, arguments), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def refusal(capsys: pytest.CaptureFixture[str], exit_code: int, *arguments: str | Path) -> str:
    assert command_line.main(["models", *map(str, arguments)]) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = (line for line in err.splitlines() if line != "planning ...")  # said by slow ones
    return line


def check(
    capsys: pytest.CaptureFixture[str], prompts: Path, target: str | Path, *more: str
) -> dict[str, Any]:
    return models(
        capsys,
        *("check", target, "draft", "--prompts", prompts, "-n", "8", "-c", "128", "-t", "1"),
        *more,
    )


def test_the_list_holds_the_embedded_models_against_the_manifest(capsys) -> None:
    listed = models(capsys, "list")["models"]
    intact = {model["name"]: model["intact"] for model in listed if model["embedded"]}
    assert {"edgespec-target", "edgespec-draft"} <= intact.keys()
    assert set(intact.values()) == {True}


def test_the_list_says_what_the_manifest_says(capsys) -> None:
    listed = {model["name"]: model for model in models(capsys, "list")["models"]}
    draft = listed["edgespec-draft"]
    assert draft["parameters"] == manifest().draft.parameters
    assert (draft["format"], draft["quantization"]) == ("gguf", "Q8_0")
    assert draft["size_bytes"] == PAIR.draft.stat().st_size


def test_the_list_describes_cached_models_without_reading_them(capsys, cache_folder: Path) -> None:
    shutil.copy(PAIR.draft, cache_folder / "mine.gguf")
    listed = models(capsys, "list")["models"]
    (cached,) = [model for model in listed if not model["embedded"] and model["files"]]
    assert (cached["name"], cached["quantization"]) == ("mine", "Q8_0")
    assert cached["files"][0]["sha256"] is None


def test_a_damaged_model_in_the_cache_does_not_end_the_list(capsys, cache_folder: Path) -> None:
    (cache_folder / "broken.gguf").write_bytes(b"junk")
    assert command_line.main(["models", "list"]) == 0
    out, err = capsys.readouterr()
    assert "\nbroken " in out
    assert "not a GGUF file" in err


def test_show_tells_the_shape(capsys) -> None:
    shown = models(capsys, "show", "target")
    assert shown["parameters"] == manifest().target.parameters
    assert shown["context_length"] == manifest().target.context_length
    assert shown["vocabulary"] == manifest().vocabulary
    assert (shown["architecture"], shown["licence"]) == ("llama", manifest().licence)
    assert shown["intact"] is True
    assert {"layers", "embedding_length", "heads", "kv_heads", "size_bytes"} <= shown.keys()


def test_models_of_a_pair_have_the_same_fingerprint_and_others_have_not(
    capsys, tmp_path: Path
) -> None:
    other = tiny_llama().write(tmp_path / "other.gguf")
    target, draft, stranger = (
        models(capsys, "show", name)["vocabulary_fingerprint"]
        for name in ("target", "draft", other)
    )
    assert target == draft != stranger


def test_an_enlarged_model_says_what_it_equals(capsys, tmp_path: Path) -> None:
    out = tmp_path / "big.gguf"
    assert (
        command_line.main(["models", "enlarge", "draft", str(out), "--size", "24MiB", "--quiet"])
        == 0
    )
    assert capsys.readouterr().out.startswith(f"{out}: 24")
    assert models(capsys, "show", out)["equals"] == manifest().draft.name


def test_show_tells_what_guesses_for_whom(capsys, tmp_path) -> None:
    shipped = Path(__file__).parents[2] / "models" / "smollm2" / "smollm2-head-q8_0.gguf"
    assert models(capsys, "show", shipped)["head"]["layers"] == [2, 15, 27]
    assert command_line.main(["models", "show", str(shipped)]) == 0
    said = "guesses for   a target of the same vocabulary, 576 wide: reads the inputs of its layers"
    assert said in capsys.readouterr().out
    guessing = write_guessing(tmp_path / "m.gguf", "glm4moe")
    assert models(capsys, "show", guessing)["own_layers"] == {"layers": 1, "obstacle": None}
    assert command_line.main(["models", "show", str(guessing)]) == 0
    assert "a layer of its own can guess for it (MTP)" in capsys.readouterr().out


def test_show_is_readable(capsys) -> None:
    assert command_line.main(["models", "show", "draft"]) == 0
    out = capsys.readouterr().out
    assert "fingerprint" in out
    assert "(as recorded)" in out
    assert "None" not in out


def test_path_prints_the_path_and_nothing_else(capsys) -> None:
    assert command_line.main(["models", "path", "target"]) == 0
    assert capsys.readouterr() == (f"{PAIR.target}\n", "")


def test_path_prints_an_object_for_programs(capsys) -> None:
    assert models(capsys, "path", "draft") == {"path": str(PAIR.draft)}


def test_a_model_that_does_not_exist_is_a_model_error(capsys) -> None:
    assert "no such file, and no model" in refusal(capsys, 3, "path", "nothing")


def test_a_file_that_is_no_model_is_a_model_error(capsys) -> None:
    assert "not a model of an installed runtime" in refusal(capsys, 3, "show", __file__)


@pytest.mark.slow
def test_a_pair_is_measured(capsys, prompts: Path) -> None:
    found = check(capsys, prompts, "target")
    assert (found["prompts"], found["tokens"]) == (2, 16)
    assert found["agreement"]["compared"] == 16
    assert 1 <= found["sources"]["tokens_per_pass"] <= 8


@pytest.mark.slow
def test_greedy_texts_and_sampled_ones_are_measured(capsys, prompts: Path) -> None:
    found = check(capsys, prompts, "target")
    sampled = found["sampled"]
    assert sampled["sampling"]["temperature"] == 0.8  # its makers recommend nothing
    assert sampled["tokens"] == 16
    assert check(capsys, prompts, "target", "--temp", "0")["sampled"] is None


@pytest.mark.slow
def test_several_drafts_are_compared(capsys: pytest.CaptureFixture[str], prompts: Path) -> None:
    flags = ["--prompts", prompts, "-n", "4", "-c", "64", "-t", "1"]
    found = models(capsys, "check", "target", "draft", "target", *flags)
    assert [pair["draft"] for pair in found["drafts"]] == [str(PAIR.draft), str(PAIR.target)]
    assert found["drafts"][1]["agreement"]["top_1"] == 1
    assert found["drafts"][1]["sampled"]["agreement"]["top_1"] == 1


@pytest.mark.slow
def test_a_draft_that_does_not_fit_is_left_out_of_a_comparison(
    capsys: pytest.CaptureFixture[str], prompts: Path, tmp_path: Path
) -> None:
    other = tiny_llama().write(tmp_path / "other.gguf")
    flags = ["--prompts", prompts, "-n", "4", "-c", "64", "-t", "1"]
    found = models(capsys, "check", "target", other, "draft", *flags)
    assert [pair["draft"] for pair in found["drafts"]] == [str(PAIR.draft)]
    (gone,) = found["left_out"]
    assert gone["draft"] == str(other) and "different vocabularies" in gone["reason"]
    again = tiny_llama().write(tmp_path / "again.gguf")
    assert "different vocabularies" in refusal(capsys, 3, "check", "target", other, again)


def test_drafts_that_are_compared_have_a_line_each() -> None:
    fit = PairFit(2, 50, 50, 40, SourcesFit(4, 10, (SourceStats("draft", 40, 30),)))
    fits = {"small": fit, "head": fit}
    table = checking.drafters_report(fits, {"other": "other tokens"}).lines()
    assert table[-1] == "other: left out, other tokens"
    assert [line.split() for line in table[3:-1]] == [
        ["small", "0.800", "3.00", "4.00"],
        ["head", "0.800", "3.00", "4.00"],
    ]


@pytest.mark.slow
def test_a_target_that_does_not_fit_its_budget_is_paged_and_gives_the_same_figures(
    capsys, prompts: Path, tmp_path: Path
) -> None:
    """In a process of its own, where the peak is that of this check alone."""
    big = tmp_path / "big.gguf"
    assert (
        command_line.main(["models", "enlarge", "target", str(big), "--size", "64MiB", "--quiet"])
        == 0
    )
    capsys.readouterr()
    command = [sys.executable, "-m", "edgespec", "models", "check", big, "draft", "--json"]
    command += ["--prompts", prompts, "-n", "8", "-c", "128", "-t", "1", "--memory-budget"]

    def checked(budget: str) -> dict[str, Any]:
        run = subprocess.run([*map(str, command), budget], capture_output=True, check=False)
        answer: dict[str, Any] = json.loads(run.stdout)
        return answer

    smallest = checked("32MiB")["error"]["smallest_bytes"]
    paged = checked(str(smallest))
    assert paged["memory"]["peak_bytes"] <= paged["memory"]["budget_bytes"] == smallest
    resident = check(capsys, prompts, "target")
    assert paged["agreement"] == resident["agreement"]


def test_models_of_different_vocabularies_are_no_pair(capsys, tmp_path: Path) -> None:
    other = tiny_llama().write(tmp_path / "other.gguf")
    assert "different vocabularies: token" in refusal(capsys, 3, "check", "target", other)


def test_an_impossible_budget_is_answered_with_the_smallest_one(capsys) -> None:
    command = ["models", "check", "target", "draft", "--memory-budget", "1MiB", "--json"]
    assert command_line.main(command) == 4
    assert json.loads(capsys.readouterr().out)["error"]["smallest_bytes"] > MIB


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-n 0", "greater than or equal to 1"),
        ("-n -1", "greater than or equal to 1"),
        ("-c -5", "--ctx-size -5"),
        ("--temp -1", "--temp -1"),
        ("--prompts /nonexistent", "--prompts /nonexistent: No such file"),
        ("--promts x", "did you mean '--prompts'?"),
    ],
)
def test_what_cannot_be_meant_is_refused(capsys, flags: str, message: str) -> None:
    assert message in refusal(capsys, 2, "check", "target", "draft", *flags.split())


@pytest.mark.slow
def test_the_answer_is_readable(capsys, prompts: Path) -> None:
    command = f"models check target draft -n 4 -c 64 -t 1 --quiet --prompts {prompts}"
    assert command_line.main(command.split()) == 0
    out, err = capsys.readouterr()
    assert "top-1 agreement:" in out
    assert "tokens per pass" in out
    assert err == ""


@pytest.mark.slow
def test_ctrl_c_ends_a_check_with_130() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "edgespec", "models", "check", "target", "draft", "-n", "900"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a test run in the background ignores Ctrl-C, and its children would too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress: it runs
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "edgespec: error: interrupted"


def test_an_interrupted_check_closes_the_models(
    monkeypatch: pytest.MonkeyPatch, prompts: Path
) -> None:
    def interrupt(model: FakeModel) -> None:
        raise KeyboardInterrupt

    target, draft = (FakeModel(random_language(1, 12), 12, hook=interrupt) for _ in range(2))
    loaded = session.LoadedModels(target, draft, PLAN, {})
    monkeypatch.setattr(session, "open_models", lambda *args: loaded)
    assert (
        command_line.main(["models", "check", "target", "draft", "--prompts", str(prompts)]) == 130
    )
    for model in (target, draft):
        with pytest.raises(AssertionError, match="used after close"):
            prefill(model, [1])


def test_help_needs_no_model_library() -> None:
    code = (
        "import sys; from edgespec.cli.command_line import main;"
        "main(['models', 'check', '--help']);"
        "main(['models', 'path', 'target']);"
        "sys.exit(any(name in sys.modules for name in ('llama_cpp', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
