"""A paged model pins more weights while its context is not full, within its budget, and writes the
same text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_files import U32, tiny_llama

N_CTX = 2048
PROGRAM = """
import json, sys
import edgespec
from edgespec.memory.cgroups import table
from pathlib import Path

def peak():
    return table(Path("/proc/self/status"))["VmHWM"]

def load(budget):
    settings = edgespec.LoadSettings(
        model=sys.argv[1], memory_budget=budget, ctx_size=2048, threads=1, batch_size=64
    )
    return edgespec.load(settings, edgespec.EngineSettings(remember=False))

drawn = edgespec.SamplingParams(temperature=1.0, seed=3)
prompts = ["hello", "the rain in the inn " * 90, "hello"]
said = {}
if sys.argv[2] == "whole":
    with load("2GiB") as session:
        said["texts"] = [session.generate(p, drawn, max_tokens=24).tokens for p in prompts]
        said["smallest"] = session.plan.smallest_bytes
else:
    budget = int(sys.argv[2])
    with load(budget) as session:
        said["planned"] = session.plan.pinned_bytes
        said["texts"], said["pinned"] = [], []
        for prompt in prompts:
            said["texts"].append(session.generate(prompt, drawn, max_tokens=24).tokens)
            said["pinned"].append(session.budget.pinned_bytes)
        moved = session.set_memory_budget(budget - 4 * 2**20)
        said["moved"] = session.budget.pinned_bytes - moved.pinned_bytes
        said["last"] = session.generate("hello", drawn, max_tokens=24).tokens
    said["ratio"] = peak() / budget
print(json.dumps(said))
"""


def child(path: Path, budget: str) -> dict[str, object]:
    command = [sys.executable, "-c", PROGRAM, str(path), budget]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")
def test_weights_have_what_the_context_does_not_use_yet(tmp_path: Path) -> None:
    model = tiny_llama(embedding=512, layers=8, heads=8, kv_heads=8, head_size=64, ffn=1024)
    model.metadata["llama.context_length"] = (U32, N_CTX)
    path = tmp_path / "wide.gguf"
    model.write(path)
    whole = child(path, "whole")
    paged = child(path, str(int(whole["smallest"]) + (6 << 20)))  # type: ignore[call-overload]
    assert paged["texts"] == whole["texts"]
    assert paged["last"] == whole["texts"][0]  # type: ignore[index]
    at_first, when_filled, again = paged["pinned"]  # type: ignore[misc]
    planned = paged["planned"]
    assert at_first - planned > 12 << 20  # of 24 MiB of weights
    assert when_filled < at_first == again
    assert paged["moved"] > 0  # type: ignore[operator]
    assert paged["ratio"] <= 1  # type: ignore[operator]
