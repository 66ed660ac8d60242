"""`edgespec models draft`: a draft made from the target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgespec.cli import entry
from edgespec.models.embedded import embedded_pair
from edgespec.models.self_draft import _Making

TARGET = str(embedded_pair().target)


class Ranked(_Making):
    """As many layers as weights; leaving one out costs as much as its weight says."""

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


def run(tmp_path: Path, *arguments: str) -> int:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def read(path):\n")
    short = ["--prompts", str(prompts), "-n", "6", "--memory-budget", "1GiB", "--quiet"]
    return entry.main(["models", "draft", TARGET, str(tmp_path / "out.gguf"), *short, *arguments])


@pytest.mark.slow
def test_a_draft_is_written_and_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--size", "4MiB", "--types", "Q4_0,Q2_K", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (tmp_path / "out.gguf").stat().st_size == report["made"]["size_bytes"] <= 4 << 20
    assert {draft["type"] for draft in report["compared"]} == {"Q4_0", "Q2_K"}
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--size", "10K"], "raise --size"),
        (["--types", "Q4_0,Q99"], "Q99 is none of"),
        (["--types", ""], "nothing is none of"),
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
