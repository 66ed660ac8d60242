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
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.engine.acceptance import ACCEPTANCE_RULES
from edgespec.files import cache_folder
from edgespec.models.embedded import embedded_pair
from gguf_files import tiny_llama

MIB = 1 << 20
CHILD = """
import hashlib, json, sys, tempfile
import edgespec
from edgespec.memory.cgroups import table
from pathlib import Path

spec = json.loads(sys.argv[1])
load, ask = edgespec.LoadSettings(**spec["load"]), spec["ask"]
rules = edgespec.EngineSettings(remember=False, **spec["rules"])
if not spec["load"].get("memory_budget"):
    plan = edgespec.plan(load, rules)
    print(json.dumps({"smallest": plan.smallest_bytes, "whole": plan.planned_bytes}))
    sys.exit()
options = {"max_tokens": ask["max_tokens"], "sampling": edgespec.SamplingParams(**ask["sampling"])}
if ask.get("grammar"):
    options["grammar"] = edgespec.regular_expression(ask["grammar"])
if ask.get("logprobs"):
    options["logprobs"] = ask["logprobs"]
with edgespec.load(load, rules) as session:
    prompts = [session.encode(text)[:80] for text in ask["prompts"]]
    texts = [result.tokens for result in session.generate_many(prompts, **options)]
    if ask.get("state"):
        with tempfile.TemporaryDirectory() as folder:
            session.save_state(Path(folder) / "it")
            session.load_state(Path(folder) / "it")
            session.generate([*prompts[-1], *texts[-1]], max_tokens=4)
    paged = session.plan.paged
print(json.dumps({
    "peak": table(Path("/proc/self/status"))["VmHWM"],
    "tokens": sum(map(len, texts)),
    "hashes": [hashlib.sha256(repr(list(text)).encode()).hexdigest()[:12] for text in texts],
    "planned": session.plan.planned_bytes,
    "paged": paged,
}))
"""
PROMPTS = {
    "short": ["def add(a, b):"],
    "long": ["the rain in the inn, and then hello again. " * 12],
    "several": ["class Tree:", "hello", "for i in range(10):", "the tea is on the table"],
}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "chat": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "all tokens": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "nucleus": {"temperature": 0.9, "top_k": 0, "top_p": 0.9},
    "penalties": {"temperature": 0.7, "repeat_penalty": 1.2, "repeat_last_n": -1},
}
ALWAYS = {"fallback": "fixed", "draft_max": 12, "step_aside": False}
EXTRAS = ("nothing", "nothing", "grammar", "logprobs", "state")
LOSSY = [str(name) for name in ACCEPTANCE_RULES if name != "exact-replay"]


@dataclass(frozen=True)
class RandomRun:
    """One process: its model, and what it is asked for."""

    model: str
    share: float
    """Place of the budget between the smallest (0) and that of a resident model (1)."""
    sampling: str = "greedy"
    guesses: str = "none"
    """none, lookup, draft, or an acceptance rule of drawn guesses."""
    prompts: str = "short"
    extra: str = "nothing"

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
        yield RandomRun(
            chance.choice(models),
            chance.choice((0.0, 0.0, 0.3, 0.7, 1.0)),
            chance.choice(list(SAMPLINGS)),
            chance.choice(("none", "lookup", "draft", chance.choice(LOSSY))),
            chance.choice(list(PROMPTS)),
            chance.choice(EXTRAS),
        )


class Runner:
    """Makes runs, and compares them."""

    def __init__(self, folder: Path, n_tokens: int) -> None:
        self.outcome = Outcome()
        self._n_tokens = n_tokens
        self._folder = folder
        self._sizes: dict[str, tuple[int, int]] = {}

    def run(self, run: RandomRun) -> str:
        """A line of the table; adds to `outcome`."""
        load, rules = self._settings(run)
        try:
            smallest, whole = self._size(load, rules)
            budget = smallest + int(run.share * max(0, whole - smallest))
            said = self._child({"load": load | {"memory_budget": budget}, "rules": rules}, run)
        except RuntimeError as error:
            self.outcome.faults.append(f"{run}: {error}")
            return f"{run}: {error}"
        ratio = said["peak"] / budget
        self.outcome.worst = max(self.outcome.worst, ratio)
        self.outcome.n_tokens += said["tokens"]
        if ratio > 1:
            self.outcome.faults.append(f"{run}: {ratio:.3f} of the budget")
        if run.text is not None:
            self.outcome.texts[run.text][" ".join(said["hashes"])].append(run)
        places = (run.model, f"{run.share:.1f}", run.sampling, run.guesses, run.prompts, run.extra)
        figures = f"{budget / MIB:.1f} | {said['peak'] / MIB:.1f} | {ratio:.3f}"
        return f"| {' | '.join(places)} | {figures} | {said['peak'] / said['planned']:.3f} |"

    def differing(self) -> list[str]:
        """A line for each text of which there were several."""
        return [
            f"{text}: {' OR '.join(str(runs[0]) for runs in found.values())}"
            for text, found in self.outcome.texts.items()
            if len(found) > 1
        ]

    def _settings(self, run: RandomRun) -> tuple[dict[str, Any], dict[str, Any]]:
        target, draft = self._files(run.model)
        load: dict[str, Any] = {"model": str(target), "ctx_size": 128, "threads": 1}
        load |= {"grammars": run.extra == "grammar", "logprobs": run.extra == "logprobs"}
        load |= {"state_files": run.extra == "state"}
        if run.prompts == "several":
            load["n_parallel"] = 3
        rules: dict[str, Any] = {}
        if run.guesses == "lookup":
            rules = ALWAYS | {"lookup": True}
        elif run.guesses != "none":
            load["draft"] = str(draft)
            rules = dict(ALWAYS)
            if run.guesses in LOSSY:
                rules["acceptance"] = run.guesses
        return load, rules

    def _files(self, model: str) -> tuple[Path, Path]:
        if model == "2k":
            pair = embedded_pair()
            return pair.target, pair.draft
        if model == "49k":
            target = cache_folder.folder() / "smollm2.gguf"
            return target, Path("models/smollm2/smollm2-head-q8_0.gguf").absolute()
        path = self._folder / f"{model}.gguf"
        if not path.exists():
            n_vocab = {"152k": 151_936, "262k": 262_144}[model]
            tiny_llama(n_vocab=n_vocab, seed=1, layers=4).write(path)
        return path, path

    def _size(self, load: dict[str, Any], rules: dict[str, Any]) -> tuple[int, int]:
        key = json.dumps([load, rules], sort_keys=True)
        if key not in self._sizes:
            said = self._child({"load": load, "rules": rules}, None)
            self._sizes[key] = said["smallest"], said["whole"]
        return self._sizes[key]

    def _child(self, spec: dict[str, Any], run: RandomRun | None) -> Any:
        ask: dict[str, Any] = {"max_tokens": self._n_tokens}
        if run is not None:
            ask |= {"prompts": PROMPTS[run.prompts], "sampling": SAMPLINGS[run.sampling]}
            ask["grammar"] = "[a-z ]{1,200}" if run.extra == "grammar" else ""
            ask |= {"logprobs": 5 * (run.extra == "logprobs"), "state": run.extra == "state"}
        command = [sys.executable, "-c", CHILD, json.dumps(spec | {"ask": ask})]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        return json.loads(done.stdout.splitlines()[-1])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=32)
    models = ("2k", "49k", "152k", "262k")
    parser.add_argument("--models", nargs="*", choices=models, default=list(models))


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
