"""A command says that its control group is too small before the kernel kills it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_files import tiny_llama
from memory_pressure import MIB, run_in_group
from onnx_files import write_llama

SIZES = (30, 42, 54, 66)
TEXTS = 150_000


def write_model(folder: Path, kind: str) -> Path:
    if kind == "onnx":
        return write_llama(folder, layers=24)
    model = tiny_llama(embedding=32, head_size=32, heads=1, kv_heads=1, n_vocab=TEXTS, hollow=True)
    return model.write(folder / "large-vocabulary.gguf")


@pytest.mark.slow
@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("command", ["generate", "serve", "show"])
@pytest.mark.parametrize("kind", ["gguf", "onnx"])
def test_a_group_that_is_too_small_is_named(tmp_path: Path, kind: str, command: str) -> None:
    """The kernel killed it while the libraries were imported or a vocabulary was read."""
    model = str(write_model(tmp_path, kind))
    words = {
        "generate": ["generate", "-m", model, "-p", "a", "-n", "1"],
        "serve": ["serve", "-m", model, "--port", "-1"],  # ends where it would listen
        "show": ["models", "show", model],
    }[command]
    check(*words)


def check(*words: str) -> None:
    found = [run_in_group(size * MIB, *words) for size in SIZES]
    assert [killed for _, _, killed in found] == [0] * len(SIZES)
    exit_code, told, _ = found[0]
    assert exit_code == 4
    assert "raise the memory limit of its container or cgroup" in told


@pytest.mark.slow
@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_a_group_that_is_too_small_for_a_second_process_is_named(
    tmp_path: Path, command: str
) -> None:
    """The kernel killed the command, which waited for a process that measures."""
    model = tiny_llama().write(tmp_path / "tiny.gguf")
    words = (command, "-m", str(model), "-c", "128")
    found = [run_in_group(size * MIB, *words) for size in (62, 66, 82)]
    assert [exit_code for exit_code, _, _ in found[:2]] == [4, 4]
    assert all("memory" in told for exit_code, told, _ in found if exit_code == 4)
    # pages of libraries that were in memory before are not charged, and 82 MiB may then be enough
    assert found[2][0] in (0, 4)
