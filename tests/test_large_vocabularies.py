"""Models with large vocabularies keep the smallest budget that is named for them, of which logits
are a good part."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gguf_files import tiny_llama

N_VOCAB = 150_000
RUN = """
import json, sys
import edgespec
from edgespec.memory import process

load, rules, generate = (json.loads(text) for text in sys.argv[1:])
settings = edgespec.LoadSettings(**load)
rules = edgespec.EngineSettings(**rules)
if generate is None:
    print(json.dumps({"smallest_bytes": edgespec.plan(settings, rules).smallest_bytes}))
else:
    with edgespec.load(settings, rules) as session:
        tokens = session.encode("hello the rain in the inn")
        drawn = generate.pop("sampling", {})
        if pattern := generate.pop("grammar", None):
            generate["grammar"] = edgespec.regular_expression(pattern)
        sampling = edgespec.SamplingParams(logit_bias={0: -100.0}, **drawn)
        result = session.generate(tokens, sampling, **generate)
    said = {"most_verified": max(cost.verified for cost in result.speculation.round_costs)}
    said |= {"paged": session.plan.paged, "tokens": len(result.tokens)}
    print(json.dumps(said | {"peak_bytes": process.peak_rss_bytes()}))
"""


def run(load: dict[str, Any], rules: dict[str, Any], generate: dict[str, Any] | None) -> Any:
    arguments = [json.dumps(value) for value in (load, rules, generate)]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def smallest_budget(load: str, rules: str) -> int:
    """Bytes of the smallest budget for settings in JSON; what is generated is no part of a plan."""
    planned = run(json.loads(load) | {"memory_budget": "8GiB"}, json.loads(rules), None)
    return int(planned["smallest_bytes"])


def at_the_smallest_budget(
    load: dict[str, Any], rules: dict[str, Any], generate: dict[str, Any]
) -> Any:
    smallest = smallest_budget(json.dumps(load), json.dumps(rules))
    said = run(load | {"memory_budget": smallest}, rules, generate)
    print(smallest >> 20, said["peak_bytes"] >> 20, said)
    return said | {"budget_bytes": smallest}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    return tiny_llama(n_vocab=N_VOCAB, seed=1).write(path)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("larger") / "model.gguf"
    return tiny_llama(n_vocab=262_144, seed=1).write(path)


@pytest.mark.slow
def test_trees_of_97_nodes_keep_the_smallest_budget(model: Path) -> None:
    """A third copy of their logits, 58 MB, was in no plan."""
    load = {"model": str(model), "draft": str(model), "ctx_size": 128}
    rules = {"draft_max": 96, "step_aside": False, "fallback": "full"}
    said = at_the_smallest_budget(load, rules, {"max_tokens": 60})
    assert said["most_verified"] == 96  # the text's end limits its last pass
    assert said["peak_bytes"] <= said["budget_bytes"]


@pytest.mark.slow
def test_a_sliced_head_keeps_the_smallest_budget(tmp_path: Path) -> None:
    path = tmp_path / "hollow.gguf"
    tiny_llama(embedding=1024, n_vocab=131_072, layers=4, hollow=True).write_hollow(path)
    load = {"model": str(path), "ctx_size": 128}
    said = at_the_smallest_budget(load, {}, {"max_tokens": 20})
    assert said["paged"]
    assert said["tokens"] == 20
    assert said["peak_bytes"] <= said["budget_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "drawn", [{"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}], ids=str
)
def test_drawing_beside_guesses_keeps_the_smallest_budget(
    larger: Path, drawn: dict[str, float]
) -> None:
    rules = {"lookup": True, "fallback": "fixed", "draft_max": 16, "step_aside": False}
    generate = {"max_tokens": 24, "sampling": drawn}
    said = at_the_smallest_budget({"model": str(larger), "ctx_size": 128}, rules, generate)
    assert said["peak_bytes"] <= said["budget_bytes"]


@pytest.mark.long
def test_a_grammar_for_long_tokens_keeps_the_smallest_budget_or_is_refused(larger: Path) -> None:
    """Tokens of 43 bytes make the library's tables four times as large as usual ones."""
    load = {"model": str(larger), "ctx_size": 128}
    with pytest.raises(AssertionError, match="structured"):
        at_the_smallest_budget(load, {}, {"max_tokens": 8, "grammar": "[a-z ]{1,40}"})
    said = run(load | {"memory_budget": "1GiB"}, {}, {"max_tokens": 8, "grammar": "[a-z ]{1,40}"})
    assert said["tokens"] == 8
    assert said["peak_bytes"] <= 1 << 30
