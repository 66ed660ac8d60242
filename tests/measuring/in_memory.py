"""Compares texts of models in memory: llama.cpp alone, its line of guesses, edgespec.

    python tests/measure.py in-memory MODEL.gguf [-md DRAFT.gguf] [-n 64] [--texts 5] [--temp 0 0.8]

Tokens a second, the prompt aside, by kind of prompt: of the first and of the last text of a
session, and of all of them. Each contender is a process of its own with weights as its library
packs them; they write in turn. The line of llama.cpp guesses 8 tokens; heads and drafts made from
the target give it none. edgespec has the same draft, its lookups, and an empty cache folder: it
knows nothing at the start.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import edgespec
from edgespec.bench.child import RandomPick
from edgespec.concurrency.spinning import SHORT
from edgespec.ports.baselines import BaselineRequest, pick_best
from edgespec.settings.units import parse_size
from edgespec_runtimes.gguf import baselines
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.heads import is_head
from edgespec_runtimes.gguf.own_draft.trimmed import is_trimmed

ALONE, LINE, NO_DRAFT, AS_IT_COMES = "llama.cpp", "its line of 8", "no draft", "edgespec"
CONTENDERS = (ALONE, LINE, NO_DRAFT, AS_IT_COMES)
KINDS = ("prose", "code", "conversation", "repeating")
N_GUESSES = 8
MODELS = Path(__file__).parents[2] / "models"
FILTERS = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("-md", "--draft")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("--texts", type=int, default=5, help="texts of a session")
    parser.add_argument("--temp", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--prompts", type=Path, help="a folder with KIND.jsonl")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--memory-budget", type=parse_size, help="of edgespec; otherwise all")
    parser.add_argument("--child", choices=CONTENDERS, help=argparse.SUPPRESS)


def measure(options: argparse.Namespace) -> None:
    if options.child:
        answer_turns(options)
        return
    rates: dict[str, list[float]] = {name: [] for name in options.contenders}
    print(
        "| kind | temperature | contender | first text | last | all | to the first | tokens/pass |"
    )
    print("| --- " * 8 + "|")
    for kind in options.kinds:
        for temperature in options.temp:
            for name, texts in session_of_each(kind, temperature, options).items():
                rate = sum(text["tokens"] for text in texts) / sum(text["s"] for text in texts)
                rates[name].append(rate)
                first, last = (text["tokens"] / text["s"] for text in (texts[0], texts[-1]))
                per_pass = sum(t["tokens"] for t in texts) / sum(t["passes"] for t in texts)
                cells = [kind, f"{temperature:g}", name, f"{first:.1f}", f"{last:.1f}"]
                to_first = rate / rates[options.contenders[0]][-1]
                cells += [f"{rate:.1f}", f"{to_first:.2f}", f"{per_pass:.2f}"]
                print(f"| {' | '.join(cells)} |", flush=True)
    print()
    for name in options.contenders:
        each = [a / b for a, b in zip(rates[name], rates[options.contenders[0]], strict=False)]
        if each:
            mean = math.exp(statistics.fmean(map(math.log, each)))
            print(f"{name}: {mean:.3f} times {options.contenders[0]}, the worst {min(each):.3f}")


def session_of_each(
    kind: str, temperature: float, options: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    names = [name for name in options.contenders if name != LINE or has_line(options.draft)]
    with ExitStack() as owned:
        children: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            folder = owned.enter_context(tempfile.TemporaryDirectory())
            environ = os.environ | {"GOMP_SPINCOUNT": str(SHORT), "XDG_CACHE_HOME": folder}
            if name in (ALONE, LINE):
                del environ["GOMP_SPINCOUNT"]
            command = [sys.executable, *sys.argv, "--child", name]
            command += ["--kinds", kind, "--temp", str(temperature)]
            child = children[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
            )
            owned.callback(child.communicate)
            answer(child)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(options.texts):
            for name, child in children.items():
                assert child.stdin is not None
                print("go", file=child.stdin, flush=True)
                found[name].append(answer(child))
    return found


def answer(child: subprocess.Popen[str]) -> Any:
    assert child.stdout is not None
    return json.loads(child.stdout.readline())


def has_line(draft: str | None) -> bool:
    if draft is None or not Path(draft).exists():
        return False
    header = read_header(Path(draft))
    return not is_head(header) and not is_trimmed(header)


def answer_turns(options: argparse.Namespace) -> None:
    """Load, and tell so; for each line, write the next text and print what it took."""
    write = llama_texts if options.child in (ALONE, LINE) else own_texts
    (kind,), (temperature,) = options.kinds, options.temp
    folder = options.prompts or MODELS / "smollm2"
    lines = (folder / f"{kind}.jsonl").read_text().splitlines()
    prompts = islice(cycle(json.loads(line)["prompt"] for line in lines), options.texts)
    sampling = [
        edgespec.SamplingParams(temperature=temperature, seed=seed, **FILTERS)
        for seed in range(options.texts)
    ]
    with ExitStack() as owned:
        for told in write(options, owned, zip(prompts, sampling, strict=True)):
            print(json.dumps(told), flush=True)
            sys.stdin.readline()


def own_texts(
    options: argparse.Namespace, owned: ExitStack, asked: Iterator[tuple[str, Any]]
) -> Iterator[dict[str, Any]]:
    guesses = options.child == AS_IT_COMES
    load = edgespec.LoadSettings(
        model=options.model,
        draft=options.draft if guesses else None,
        ctx_size=1024,
        threads=options.threads,
        memory_budget=options.memory_budget or "100%",
    )
    rules = edgespec.EngineSettings(lookup=guesses)
    session = owned.enter_context(edgespec.load(load, rules))
    yield {}
    for prompt, sampling in asked:
        stream = session.stream(prompt, sampling, options.tokens + 1)
        next(stream)
        began = time.perf_counter()
        n_tokens = sum(1 for _ in stream)
        took_s = time.perf_counter() - began
        yield {
            "tokens": n_tokens,
            "s": took_s,
            "passes": max(1, stream.result.speculation.rounds - 1),
        }


def llama_texts(
    options: argparse.Namespace, owned: ExitStack, asked: Iterator[tuple[str, Any]]
) -> Iterator[dict[str, Any]]:
    request = partial(
        BaselineRequest, options.model, None, ctx_size=1024, n_threads=options.threads
    )
    read = partial(request, prompts=(), n_tokens=options.tokens, bytes_read=lambda: 0)
    target = owned.enter_context(baselines._LlamaModel(options.model, read(), True))
    drafter = None
    if options.child == LINE:
        draft = baselines._LlamaModel(Path(options.draft), read(), True)
        drafter = baselines._Drafter(owned.enter_context(draft), N_GUESSES, 0.0)
    models: list[Any] = [target, *([drafter.draft] if drafter else [])]
    yield {}
    for prompt, sampling in asked:
        pick = RandomPick(sampling) if sampling.temperature else pick_best
        tokens = target.vocabulary.encode(prompt)
        for model in models:
            model.forget_from(0)
            if before := tokens[:-1]:
                model.read(before, 0)
        done, rounds = baselines._decoded(read(pick=pick), target, drafter, tokens)
        yield {"tokens": len(done), "s": sum(cost.wall_s for cost in rounds), "passes": len(rounds)}
