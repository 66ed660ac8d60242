"""Whatever the model, the budget, the guesses and the neighbours: the text is the one without
guesses in memory, and the process stays within its budget by the kernel's count.

Each cell is a process of its own (`matrix_process.py`), which writes greedy and sampled texts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")

from edgespec.grammar.specification import GRAMMAR_BYTES, library_bytes
from edgespec.models import catalogue
from edgespec.models.embedded import embedded_pair
from edgespec.tools import enlarge
from edgespec.values import NESTED
from edgespec_runtimes.enlarge.gguf.trim import trim, write_trimmed
from embedding_files import write_decoder, write_encoder
from gguf_files import U32, borrowing, predictable_pair, repeating_pair, tiny_eagle3, tiny_llama
from zoo_files import write_guessing, write_model
from zoo_species import Species

PROMPTS = {
    "short": ["def add(a, b):"],
    "long": ["the rain in the inn, and then hello again. " * 40],
    "several": ["class Tree:", "hello", "for i in range(10):", "the tea is on the table"],
    "chat": ["hello", "the tea is on the table"],
}
N_CTX = {"long": 512}
"""Tokens of context, of which a prompt has three quarters at most; otherwise 128."""
N_TOKENS = 16
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "chat": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 5},
    "all tokens": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "nucleus": {"temperature": 0.9, "top_k": 0, "top_p": 0.9},
    "penalties": {"temperature": 0.7, "repeat_penalty": 1.2, "repeat_last_n": -1},
}
ALWAYS = {"fallback": "fixed", "draft_max": 12, "step_aside": False}
ENCODER, DECODER = "encoder", "decoder"
"""Embedding models."""
LARGE = 151_936
"""Tokens of the vocabulary of `large`."""


@dataclass(frozen=True)
class MatrixCell:
    """One process: its model, and what it is asked for."""

    model: str
    share: float
    """Place of the budget between the smallest (0) and that of a resident model (1)."""
    guesses: str = "none"
    """`lookup`, `draft`, `head`, a draft of the `other runtime`, or one made from the
    target: `trimmed`, `coarse`, `nested`."""
    samplings: tuple[str, ...] = ("greedy", "chat")
    prompts: str = "short"
    extra: str = "nothing"
    """`grammar`, `logprobs`, `prefixes` stored, or `changes` of the budget in a text."""


class Matrix:
    """Processes over models that are written once; each process is run once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
        self._said: dict[MatrixCell, dict[str, Any]] = {}
        self._files = cache(self._write)
        self._sizes: dict[str, dict[str, int]] = {}

    def said(self, cell: MatrixCell) -> dict[str, Any]:
        """The share of the budget that a process took, and the digests of its texts."""
        if cell not in self._said:
            load, rules = self._settings(cell)
            spec = {"embeds": cell.model in (ENCODER, DECODER), "load": load, "rules": rules}
            sizes = self._sizes_of(spec)
            most = sizes["whole"] - sizes["smallest"]
            budget = sizes["smallest"] + int(cell.share * max(0, most))
            if cell.extra == "grammar":  # and batches
                budget += library_bytes(49_152, 14 * 49_152) + 5 * GRAMMAR_BYTES
            ask = {
                "max_tokens": N_TOKENS,
                "prompts": PROMPTS[cell.prompts],
                "samplings": [SAMPLINGS[name] for name in cell.samplings],
                "chat": cell.prompts == "chat",
                "extra": cell.extra,
            }
            self._said[cell] = self._start(
                spec | {"load": load | {"memory_budget": budget}, "ask": ask}
            )
        return self._said[cell]

    def _sizes_of(self, spec: dict[str, Any]) -> dict[str, int]:
        key = json.dumps(spec, sort_keys=True)
        if key not in self._sizes:
            self._sizes[key] = self._start(spec)
        return self._sizes[key]

    def _start(self, spec: dict[str, Any]) -> Any:
        command = [sys.executable, str(Path(__file__).with_name("matrix_process.py"))]
        done = subprocess.run(
            [*command, json.dumps(spec)],
            capture_output=True,
            text=True,
            check=False,
            env=self._environment,
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
        assert "error" not in said, said
        return said

    def _settings(self, cell: MatrixCell) -> tuple[dict[str, Any], dict[str, Any]]:
        files = self._files(cell.model)
        load: dict[str, Any] = {"model": str(files["target"]), "threads": 1}
        load["ctx_size"] = N_CTX.get(cell.prompts, 128)
        if cell.model in (ENCODER, DECODER):
            return load, {}
        load["adjustable_budget"] = cell.extra in ("changes", "grammar")
        if cell.extra == "prefixes":
            load["prompt_cache"] = str(self._folder / f"prefixes of {cell.model}")
        if cell.prompts == "several":
            load["n_parallel"] = 3
        rules: dict[str, Any] = {} if cell.guesses == "none" else dict(ALWAYS)
        if cell.guesses == "lookup":
            rules["lookup"] = True
        elif cell.guesses != "none":
            draft = files.get(cell.guesses, files.get("draft"))
            load["draft"] = str(draft)
        return load, rules

    def _write(self, model: str) -> dict[str, Path]:
        """Files of a kind of model: target, draft and head, as far as there are any."""
        pair, path = embedded_pair(), self._folder / f"{model}.gguf"
        other = self._folder / f"{model}-other.gguf"
        if model == "gguf":
            other_runtime = pair.draft.parent / "edgespec-draft-onnx-fp16"
            write_trimmed(pair.target, other, range(3000))
            files = {"target": pair.target, "draft": pair.draft, "trimmed": other}
            return files | {"other runtime": other_runtime}
        if model == "mixture":
            return {"target": catalogue.find("mixture"), "draft": pair.draft}
        if model == "onnx":
            models = pair.target.parent
            exports = {role: models / f"edgespec-{role}-onnx-fp16" for role in ("target", "draft")}
            return exports | {"other runtime": pair.draft}
        if model in HEADS:
            target, head = HEADS[model]()
            return {"target": target.write(path), "head": head.write(other)}
        if model == "hybrid":
            write_model(path, Species("lfm2"))
            return {"target": path, "draft": write_model(other, Species("llama"))}
        if model in (ENCODER, DECODER):
            write = {ENCODER: write_encoder, DECODER: write_decoder}[model]
            return {"target": write(path, feed_forward_length=8192)}
        if model == "enlarged":
            enlarge(pair.target, path, 24 << 20)
            trim(path, nested := path.with_suffix(".nested"), NESTED[0], range(4096))
            trim(path, other, "Q4_0", range(4096))
            return {"target": path, "nested": nested, "coarse": other}
        if model in LAYERS:
            return {"target": write_guessing(path, LAYERS[model], knows=True), "draft": path}
        return self._write_large(path, other)

    def _write_large(self, path: Path, other: Path) -> dict[str, Path]:
        target = tiny_llama(n_vocab=LARGE, seed=1, layers=4)
        kind, of_what, tokens = target.metadata["tokenizer.ggml.tokens"]
        tokens = [token.replace(" ", "_") for token in tokens]  # a blank is no byte's character
        target.metadata["tokenizer.ggml.tokens"] = (kind, of_what, tokens)
        head = borrowing(
            tiny_eagle3(n_draft_vocab=None), target, "token_embd.weight", "output.weight"
        )
        names = [name for name in target.metadata if name.startswith("tokenizer.")]
        head.metadata |= {name: target.metadata[name] for name in names}
        head.metadata["eagle3.context_length"] = (U32, 128)
        return {"target": target.write(path), "draft": path, "head": head.write(other)}


HEADS = {"eagle": predictable_pair, "dflash": repeating_pair}
LAYERS = {"mtp": "glm4moe", "hybrid mtp": "qwen35"}
"""Architectures of targets with a layer of their own that guesses."""
GUESSES = {
    "gguf": ("draft", "none", "lookup", "trimmed", "other runtime"),
    "mixture": ("draft", "none", "lookup"),
    "onnx": ("draft", "none", "lookup", "other runtime"),
    "hybrid": ("draft", "none", "lookup"),
    "eagle": ("head",),
    "dflash": ("head",),
    "enlarged": ("nested", "coarse"),
    "mtp": ("draft",),
    "hybrid mtp": ("draft",),
    "large": ("head", "draft"),
}
FAST = ("gguf", "draft", 0.0)
CELLS = [
    pytest.param(*one, marks=[] if one == FAST else [pytest.mark.slow])
    for model, ways in GUESSES.items()
    for guesses in ways
    for share in (0.0, 0.5)
    for one in [(model, guesses, share)]
]
ONCE = ("greedy",)
REQUESTS = [
    MatrixCell("gguf", 0.0, "none", ONCE, "several", "logprobs"),
    MatrixCell("gguf", 0.0, "trimmed", ONCE, "several"),
    MatrixCell("gguf", 0.0, "draft", ("chat",), "chat", "changes"),
    MatrixCell("gguf", 0.0, "draft", ("nucleus",), "long", "prefixes"),
    MatrixCell("gguf", 0.0, "draft", ("penalties",), "several", "grammar"),
    MatrixCell("large", 0.0, "draft", ("all tokens",), extra="logprobs"),
    MatrixCell("large", 0.7, "lookup", ("all tokens",), extra="changes"),
    MatrixCell(ENCODER, 0.0, prompts="several"),
    MatrixCell(DECODER, 0.0, prompts="long"),
]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize(("model", "guesses", "share"), CELLS)
def test_the_text_is_the_one_without_guesses_in_memory(
    matrix: Matrix, model: str, guesses: str, share: float
) -> None:
    cell = MatrixCell(model, share, guesses)
    said, alone = matrix.said(cell), matrix.said(MatrixCell(model, 1.0))
    assert said["ratio"] <= 1
    assert said["digests"] == alone["digests"]
    assert guesses in ("none", "lookup") or said["verified"]


@pytest.mark.slow
@pytest.mark.parametrize("cell", REQUESTS)
def test_requests_of_any_kind_keep_the_smallest_budget(matrix: Matrix, cell: MatrixCell) -> None:
    said = matrix.said(cell)
    assert said["ratio"] <= 1
    plain = "nothing" if cell.extra != "grammar" else "grammar"
    alone = matrix.said(replace(cell, share=1.0, guesses="none", extra=plain))
    assert said["digests"] == alone["digests"]
