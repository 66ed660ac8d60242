"""The command on ONNX models, in a process of its own: memory, text, bad input."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from commands_here import Done, run_here
from onnx_files import write_llama
from test_end_to_end import MIB, edgespec

pytestmark = [
    pytest.mark.skipif(
        "onnx" not in {entry.name for entry in entry_points(group="edgespec.runtimes")},
        reason="edgespec was installed before it had the ONNX runtime",
    ),
]

PROMPT = "the other one " * 20


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 100 MiB in half precision."""
    path = tmp_path_factory.mktemp("models") / "big"
    shape = {"layers": 16, "hidden": 512, "heads": 8, "ffn": 1536, "vocab": 1024}
    return write_llama(path, dtype="float16", context=512, **shape).parent  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "small", vocab=1024, context=512).parent


@pytest.fixture(scope="module")
def smallest(big: Path, small: Path) -> int:
    done = edgespec("plan", "-m", big, "-md", small, "--memory-budget", "60M")
    assert done.code == 4, done.stderr
    found = re.search(r"at least (\d+) MiB", done.stderr)
    assert found
    return int(found[1])


def generate(big: Path, small: Path | None, budget: str) -> Done:
    models = ["-m", big, *(["-md", small] if small else [])]
    return edgespec(
        "generate", *models, "-p", PROMPT, "-n", "8", "--memory-budget", budget, "--json"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "more_mib", [80, *(pytest.param(mib, marks=pytest.mark.slow) for mib in (2, 30, 1000))]
)
def test_the_peak_of_the_process_stays_within_the_budget(
    big: Path, small: Path, smallest: int, more_mib: int
) -> None:
    budget = smallest + more_mib
    done = generate(big, small, f"{budget}MiB")
    assert done.code == 0, done.stderr
    memory = done.json["memory"]
    assert memory["peak_bytes"] <= memory["planned_bytes"] <= budget * MIB
    assert memory["peak_bytes"] >= 0.75 * memory["planned_bytes"]
    assert done.json["plan"]["paged"] == (more_mib < 1000)


@pytest.mark.slow
def test_the_text_is_the_same_whatever_is_paged(big: Path, small: Path, smallest: int) -> None:
    paged = generate(big, small, f"{smallest + 2}MiB").json
    alone = generate(big, None, f"{smallest + 60}MiB").json
    assert paged["tokens"] == alone["tokens"]


def test_a_folder_that_is_no_model_ends_with_code_3(tmp_path: Path) -> None:
    done = run_here("generate", "-m", tmp_path, "-p", "x")
    assert done.code == 3
    assert "is not a model" in done.stderr


def test_weights_outside_the_folder_end_with_code_3(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model")
    outside = b"../nothing_data"
    path.write_bytes(path.read_bytes().replace(b"model.onnx_data", outside))
    done = run_here("plan", "-m", path)
    assert done.code == 3
    assert "outside its own folder" in done.stderr
    assert "Traceback" not in done.stderr
