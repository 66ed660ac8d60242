"""A context of 16,384 tokens, in a process of its own: what the plan counts holds."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gguf
import pytest

from edgespec.models.embedded import embedded_pair
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge

MIB = 1 << 20
N_CTX = 16_384
PROMPT = inspect.getsource(textwrap)[:3000]
TIMEOUT_S = 1200


def run(*arguments: str | Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "edgespec", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def with_long_context(source: Path, path: Path) -> Path:
    """A copy that says it was trained on more tokens; what it writes there is no matter."""
    shutil.copy(source, path)
    reader = gguf.GGUFReader(path, "r+")
    field = reader.fields["llama.context_length"]
    field.parts[field.data[0]][0] = N_CTX
    reader.data.flush()
    return path


@pytest.mark.slow
def test_a_long_context_stays_within_a_budget_that_holds_half_the_weights(tmp_path: Path) -> None:
    target = tmp_path / "big.gguf"
    enlarge(with_long_context(embedded_pair().target, tmp_path / "target.gguf"), target, 128 * MIB)
    draft = with_long_context(embedded_pair().draft, tmp_path / "draft.gguf")
    models = ("-m", target, "-md", draft, "-c", str(N_CTX), "--json")
    refused = run("plan", *models, "--memory-budget", "64MiB")["error"]
    assert "draft KV cache (1024 tokens)" in refused["message"]
    budget = refused["smallest_bytes"] + target.stat().st_size // 2
    answer = run(
        "generate", *models, "--memory-budget", budget, "-p", PROMPT, "-n", "16", "--quiet"
    )
    plan, paging = answer["plan"], answer["paging"]
    assert plan["streamed_bytes"] > 0 == paging["streamed_bytes"]  # weights have what no text fills
    (cache,) = (row for row in plan["rows"] if row["what"] == f"KV cache ({N_CTX} tokens)")
    unfilled = cache["nbytes"] * (1 - (len(answer["prompt_tokens"]) + 16) / N_CTX)
    expected = plan["planned_bytes"] - unfilled + plan["streamed_bytes"]
    assert plan["planned_bytes"] <= budget
    assert 0.8 * expected < answer["memory"]["peak_bytes"] <= budget
    n_batches = -(-len(answer["prompt_tokens"]) // answer["plan"]["batch_size"])
    assert paging["passes"] <= n_batches + 16
