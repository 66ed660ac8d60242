"""`edgespec models draft`: a draft made from the target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from commands_here import Done, run_here
from edgespec.cli import entry
from edgespec.cli.commands.models.making import room_line
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.pinning import SegmentSize
from edgespec.models.embedded import embedded_pair
from edgespec.models.self_draft import DraftMemory, _DraftSearch, draft_memory

TARGET = str(embedded_pair().target)
ONNX = str(Path(__file__).parents[2] / "models/edgespec-target-onnx-fp16")


class Ranked(_DraftSearch):
    """Model with a layer for each weight; leaving it out costs as much as its weight says."""

    def __init__(self, weight: Sequence[float]) -> None:
        self._n_layers = len(weight)
        self._weight = weight
        self._tool = self
        self._target = self._folder = Path()
        self._progress = lambda what, share: None

    def quantise(self, source: Path, folder: Path, kind: str, progress: object = None) -> Path:
        return Path("nothing")

    def _agreement_of(self, source: Path, layers: Sequence[int]) -> float:
        return sum(self._weight[layer] for layer in layers)


def test_what_matters_least_is_left_out_first() -> None:
    assert Ranked([0.3, 0.02, 0.1, 0.05, 0.2, 0.33])._order(2) == [1, 3, 2, 4]


def test_layers_that_matter_together_are_found_out() -> None:
    class Twins(Ranked):
        def _agreement_of(self, source: Path, layers: Sequence[int]) -> float:
            """Either of layers 1 and 2 will do; one of the two is needed."""
            one_of_both = 0.5 * bool({1, 2} & set(layers))
            return super()._agreement_of(source, layers) + one_of_both

    assert Twins([0.4, 0.01, 0.02, 0.1])._order(2) == [1, 3]


def of_draft(folder: Path) -> list[str]:
    prompts = folder / "prompts.txt"
    prompts.write_text("def read(path):\n")
    short = ["--prompts", str(prompts), "-n", "6", "--memory-budget", "1GiB", "--quiet"]
    return ["models", "draft", TARGET, str(folder / "out.gguf"), *short]


def run(tmp_path: Path, *arguments: str) -> int:
    return entry.main([*of_draft(tmp_path), *arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """The folder with a draft, and what the command said."""
    folder = tmp_path_factory.mktemp("made")
    done = run_here(*of_draft(folder), "--size", "4MiB", "--types", "Q4_0,Q2_K", "--json")
    assert done.code == 0, done.stderr
    return folder, done


@pytest.mark.slow
def test_a_draft_is_written_and_measured(made: tuple[Path, Done]) -> None:
    folder, done = made
    report = done.json
    assert (folder / "out.gguf").stat().st_size == report["made"]["size_bytes"] <= 4 << 20
    assert {draft["type"] for draft in report["compared"]} == {"Q4_0", "Q2_K"}
    assert list(folder.glob(".*")) == []
    assert report["room"]["draft_bytes"] <= report["room"]["max_bytes"]


@pytest.mark.slow
def test_a_draft_of_the_gguf_twin_drafts_for_an_onnx_target(
    made: tuple[Path, Done], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = made
    draft = str(folder / "out.gguf")
    of_check = ["-n", "6", "--memory-budget", "1GiB", "--prompts", str(folder / "prompts.txt")]
    assert entry.main(["models", "check", ONNX, draft, *of_check, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agreement"]["compared"] == 6
    texts = []
    for flags in (["-md", draft], ["--no-draft"]):
        of_text = ["-p", "def read(path):", "-n", "12", "--memory-budget", "1GiB", "--json"]
        assert entry.main(["generate", "-m", ONNX, *flags, *of_text]) == 0
        texts.append(json.loads(capsys.readouterr().out)["tokens"])
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_an_onnx_target_is_told_of_its_twin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(["models", "draft", ONNX, str(tmp_path / "out.gguf"), "--size", "2MiB"]) == 2
    assert "name the GGUF twin" in capsys.readouterr().err


def test_the_room_is_what_is_left_beside_the_target() -> None:
    def plan(smallest: int, pinned: int, *rows: MemoryRow) -> MemoryPlan:
        segments = tuple(SegmentSize(f"{n}", 10, 10) for n in range(10))
        return MemoryPlan(100, rows, segments, frozenset(range(pinned)), 20, True, smallest)

    draft = (MemoryRow("draft", "weights", 12), MemoryRow("draft", "KV cache", 3))
    found = draft_memory(plan(40, 5), plan(55, 3, *draft, MemoryRow("target", "KV cache", 9)))
    assert found == DraftMemory(
        100, draft_bytes=15, max_bytes=60, read_bytes=70, read_alone_bytes=50
    )
    assert "the draft takes 15 bytes" in room_line(found)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--size", "10K"], "raise --size"),
        (["--types", "Q4_0,Q99"], "'Q99' is not one of"),
        (["--types", ""], "--types is empty"),
    ],
)
def test_what_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    assert run(tmp_path, *flags) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()


def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.gguf").write_bytes(b"mine")
    assert run(tmp_path) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "out.gguf").read_bytes() == b"mine"
