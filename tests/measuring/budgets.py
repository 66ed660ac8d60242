"""Prints the peak memory of random runs beside their budgets, and which texts depended on them.

    python tests/measure.py budgets [--runs 300] [--seed 0] [--tokens 32] [--models 2k 262k]

A run is a process of its own: a vocabulary, a budget between the smallest and the model's size,
a way to sample, guesses, and what else a request may ask for. Its peak is the kernel's count. Runs
that differ only in budget, guesses or neighbours must write one text, but with acceptance rules
that keep only the distribution. Ends with 1 if a budget was exceeded or a text differed. 49k is
SmolLM2, from the cache folder; 152k and 262k have random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.files import cache_folder
from edgespec.grammar.specification import GRAMMAR_BYTES, library_bytes
from edgespec.models.embedded import embedded_pair
from edgespec.rules.acceptance_rules import ACCEPTANCE_RULES
from edgespec.settings.rule_names import AcceptanceName, Keeps
from embedding_files import write_decoder, write_encoder
from gguf_files import U32, borrowing, tiny_eagle3, tiny_llama

MIB = 1 << 20
CHILD = Path(__file__).parents[1] / "budget_runs.py"
PROMPTS = {
    "short": ["def add(a, b):"],
    "long": ["the rain in the inn, and then hello again. " * 40],
    "several": ["class Tree:", "hello", "for i in range(10):", "the tea is on the table"],
    "chat": ["hello", "the tea is on the table"],
}
N_CTX = {"long": 512}
"""Tokens of context, of which a prompt has three quarters at most; otherwise 128."""
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "chat": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "all tokens": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "nucleus": {"temperature": 0.9, "top_k": 0, "top_p": 0.9},
    "penalties": {"temperature": 0.7, "repeat_penalty": 1.2, "repeat_last_n": -1},
}
ALWAYS = {"fallback": "fixed", "draft_max": 12, "step_aside": False}
LOSSY = [str(name) for name in ACCEPTANCE_RULES if name != "exact-replay"]
GUESSES = ("none", "lookup", "draft", "head", "self")
EXTRAS = ("nothing", "nothing", "grammar", "logprobs", "prefixes", "changes")
ENCODER, DECODER = "encoder", "decoder"
"""Embedding models."""
SHARES = {"2k": 9, "49k": 3, "152k": 4, "262k": 4, ENCODER: 1, DECODER: 1}
"""Weights of the choice of a vocabulary: quick ones are drawn more often."""
VOCABULARIES = {"152k": 151_936, "262k": 262_144}
"""Tokens of the models that are written here."""


@dataclass(frozen=True)
class RandomRun:
    """One process: its model, and what it is asked for."""

    model: str
    share: float
    """Place of the budget between the smallest (0) and that of a resident model (1)."""
    sampling: str = "greedy"
    guesses: str = "none"
    """One of GUESSES, or an acceptance rule of drawn guesses."""
    prompts: str = "short"
    extra: str = "nothing"

    @property
    def embeds(self) -> bool:
        return self.model in (ENCODER, DECODER)

    @property
    def text(self) -> tuple[str, ...] | None:
        """Inputs that the text may depend on; None for rules that keep only its distribution."""
        if self.guesses in LOSSY:
            return None
        extra = self.extra if self.extra == "grammar" else ""
        return (self.model, self.sampling, self.prompts, extra)


@dataclass
class Outcome:
    """Peaks and texts of the runs so far."""

    worst: float = 0.0
    n_tokens: int = 0
    faults: list[str] = field(default_factory=list)
    texts: dict[tuple[str, ...], dict[str, list[RandomRun]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )


def random_runs(models: list[str], n_runs: int, seed: int) -> Iterator[RandomRun]:
    chance = random.Random(seed)
    for _ in range(n_runs):
        model = chance.choices(models, [SHARES[one] for one in models])[0]
        share = chance.choice((0.0, 0.0, 0.3, 0.7, 1.0))
        if model in (ENCODER, DECODER):
            yield RandomRun(model, share, prompts=chance.choice(("short", "long", "several")))
            continue
        guesses = chance.choice((*GUESSES, chance.choice(LOSSY)))
        if guesses == "head" and model == "2k":  # it has no head
            guesses = "draft"
        if guesses in LOSSY and model == "49k":  # it has no draft but a head
            guesses = "head"
        sampling, prompts = chance.choice(list(SAMPLINGS)), chance.choice(list(PROMPTS))
        extra = chance.choice(EXTRAS)
        if guesses in LOSSY and (extra == "grammar" or _refuses(guesses, extra)):  # refused
            extra = "nothing"
        yield RandomRun(model, share, sampling, guesses, prompts, extra)


def _refuses(rule: str, extra: str) -> bool:
    """True if an acceptance rule whose texts the target would not write is asked for logprobs."""
    return extra == "logprobs" and ACCEPTANCE_RULES[AcceptanceName(rule)].keeps is Keeps.NEITHER


class Runner:
    """Makes runs, and compares them."""

    def __init__(self, folder: Path, n_tokens: int) -> None:
        self.outcome = Outcome()
        self._n_tokens = n_tokens
        self._folder = folder
        self._sizes: dict[str, tuple[int, int]] = {}
        self._environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}

    def run(self, run: RandomRun) -> str:
        """A line of the table; adds to `outcome`."""
        load, rules = self._settings(run)
        try:
            smallest, whole = self._size(load, rules)
            budget = smallest + int(run.share * max(0, whole - smallest))
            if run.extra == "grammar":
                n_tokens = VOCABULARIES.get(run.model, 49_152)
                budget += library_bytes(n_tokens, 14 * n_tokens) + 5 * GRAMMAR_BYTES  # and batches
            said = self._child(load | {"memory_budget": budget}, rules, run)
        except RuntimeError as error:
            self.outcome.faults.append(f"{run}: {error}")
            return f"{run}: {error}"
        ratio = said["ratio"]
        self.outcome.worst = max(self.outcome.worst, ratio)
        self.outcome.n_tokens += said["tokens"]
        if ratio > 1:
            self.outcome.faults.append(f"{run}: {ratio:.3f} of the budget")
        if run.text is not None and said["digests"]:
            self.outcome.texts[run.text][" ".join(said["digests"])].append(run)
        places = (run.model, f"{run.share:.1f}", run.sampling, run.guesses, run.prompts, run.extra)
        figures = f"{budget / MIB:.1f} | {said['peak'] / MIB:.1f} | {ratio:.3f}"
        of_plan = f"{said['peak'] / said['planned']:.3f}" if said["planned"] else said["refused"]
        return f"| {' | '.join(places)} | {figures} | {of_plan} |"

    def differing(self) -> list[str]:
        """A line for each text of which there were several."""
        return [
            f"{text}: {' OR '.join(str(runs[0]) for runs in found.values())}"
            for text, found in self.outcome.texts.items()
            if len(found) > 1
        ]

    def _settings(self, run: RandomRun) -> tuple[dict[str, Any], dict[str, Any]]:
        target, draft, head = self._files(run.model)
        load: dict[str, Any] = {"model": str(target), "threads": 1}
        load["ctx_size"] = N_CTX.get(run.prompts, 128)
        if run.embeds:
            return load, {}
        load["adjustable_budget"] = run.extra in ("changes", "grammar")
        if run.extra == "prefixes":
            load["prompt_cache"] = str(self._folder / f"prefixes of {run.model}")
        if run.prompts == "several":
            load["n_parallel"] = 3
        rules: dict[str, Any] = {}
        if run.guesses == "lookup":
            rules = ALWAYS | {"lookup": True}
        elif run.guesses != "none":
            load["draft"] = {"head": str(head), "self": "self"}.get(run.guesses, str(draft))
            rules = dict(ALWAYS)
            if run.guesses in LOSSY:
                rules["acceptance"] = run.guesses
        return load, rules

    def _files(self, model: str) -> tuple[Path, Path, Path]:
        """Target, draft and head."""
        if model == "2k":
            pair = embedded_pair()
            return pair.target, pair.draft, pair.draft
        if model == "49k":
            target = cache_folder.folder() / "smollm2.gguf"
            head = Path(__file__).parents[2] / "models/smollm2/smollm2-head-q8_0.gguf"
            return target, head, head
        path, head = self._folder / f"{model}.gguf", self._folder / f"{model}-head.gguf"
        if path.exists():
            return path, path, head
        if model in (ENCODER, DECODER):
            write = {ENCODER: write_encoder, DECODER: write_decoder}[model]
            return write(path), path, path
        target = tiny_llama(n_vocab=VOCABULARIES[model], seed=1, layers=4)
        kind, of_what, tokens = target.metadata["tokenizer.ggml.tokens"]
        tokens = [token.replace(" ", "_") for token in tokens]  # a blank is no byte's character
        target.metadata["tokenizer.ggml.tokens"] = (kind, of_what, tokens)
        target.metadata["llama.context_length"] = (U32, max(N_CTX.values()))
        target.write(path)
        guessing = borrowing(
            tiny_eagle3(n_draft_vocab=None), target, "token_embd.weight", "output.weight"
        )
        names = [name for name in target.metadata if name.startswith("tokenizer.")]
        guessing.metadata |= {name: target.metadata[name] for name in names}
        guessing.metadata["eagle3.context_length"] = (U32, max(N_CTX.values()))
        guessing.write(head)
        return path, path, head

    def _size(self, load: dict[str, Any], rules: dict[str, Any]) -> tuple[int, int]:
        key = json.dumps([load, rules], sort_keys=True)
        if key not in self._sizes:
            spec = {"door": _door(load), "load": load, "rules": rules}
            said = self._start(spec)
            if "error" in said:
                raise RuntimeError(said["error"])
            self._sizes[key] = said["smallest"], said["whole"]
        return self._sizes[key]

    def _child(self, load: dict[str, Any], rules: dict[str, Any], run: RandomRun) -> Any:
        ask: dict[str, Any] = {"max_tokens": self._n_tokens}
        ask |= {"prompts": PROMPTS[run.prompts], "sampling": SAMPLINGS[run.sampling]}
        ask |= {"chat": run.prompts == "chat", "extra": run.extra}
        spec = {"door": _door(load), "load": load, "rules": rules, "ask": ask}
        return self._start(spec)

    def _start(self, spec: dict[str, Any]) -> Any:
        """Run a process of its own; returns its answer."""
        command = [sys.executable, str(CHILD), json.dumps(spec)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=self._environment
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        return json.loads(done.stdout.splitlines()[-1])


def _door(load: dict[str, Any]) -> str:
    return "embedder" if Path(load["model"]).stem in (ENCODER, DECODER) else "session"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--models", nargs="*", choices=SHARES, default=list(SHARES))


def measure(options: argparse.Namespace) -> None:
    print(
        "| vocabulary | share | sampling | guesses | prompts | also | budget, MiB | peak, MiB "
        "| of the budget | of the plan |"
    )
    print("| --- " * 10 + "|")
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder), options.tokens)
        for run in random_runs(options.models, options.runs, options.seed):
            print(runner.run(run), flush=True)
    faults = [*runner.outcome.faults, *runner.differing()]
    print(f"\n{runner.outcome.n_tokens} tokens; at most {runner.outcome.worst:.3f} of the budget")
    print(*faults, sep="\n")
    if faults:
        sys.exit(1)
