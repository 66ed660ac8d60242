"""Counts texts that depend on budgets, guesses, neighbours or earlier texts: none may.

    python tests/measure.py one-text LOG [--models zoo smollm2 qwen2.5-coder] [--species llama ...]

Each prompt of each model is written greedily and drawn: alone, beside others, after another text,
with lookups and a draft, and paged under budgets that change in the middle. LOG gets a line of JSON
for each model, and models that it has are skipped, so that an interrupted run goes on. `zoo` has a
tiny model of every architecture. Ends with 1 if a text differed without a note about it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgespec
import zoo_trials
from edgespec.files import cache_folder
from zoo_files import write_model
from zoo_species import NO_TEXT, all_species

ZOO = "zoo"
HEAD = Path(__file__).parents[2] / "models/smollm2/smollm2-head-q8_0.gguf"
DRAWN = {"temperature": 0.8, "top_p": 0.95, "seed": 7}
SAMPLINGS: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, DRAWN)
ALWAYS = {"fallback": "fixed", "draft_max": 8, "step_aside": False, "remember": False}
TEXTS = (
    "def fibonacci(n):\n",
    "The history of the lighthouse begins long before electric lamps.",
    "the rain in the inn, and then hello again. " * 6,
)
N_TINY, N_REAL = 40, 64
"""Tokens of a text of a tiny model and of a real one."""
TIME_LIMIT_S = 3600

Texts = dict[str, list[tuple[int, ...]]]


@dataclass(frozen=True)
class ComparedPair:
    """A target, a draft if there is one, and its prompts."""

    target: Path
    draft: Path | None
    prompts: Sequence[Sequence[int] | str]
    n_tokens: int
    ctx_size: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", type=Path)
    parser.add_argument("--models", nargs="*", default=[ZOO, "smollm2", "qwen2.5-coder"])
    parser.add_argument("--species", nargs="*", default=[])


def measure(options: argparse.Namespace) -> None:
    zoo_trials.TIME_LIMIT_S = TIME_LIMIT_S
    zoo_trials.warm_up()
    done = {line["model"] for line in _lines(options.log)}
    with tempfile.TemporaryDirectory() as folder, options.log.open("a") as log:
        for name, models in _all_models(options, Path(folder)):
            if name in done:
                continue
            ended = zoo_trials.in_child(lambda models=models: _compared(models()))
            line = {"model": name, "how": ended.how, "told": ended.told, **(ended.value or {})}
            print(json.dumps(line), file=log, flush=True)
    lines = list(_lines(options.log))
    written = [line for line in lines if line["how"] == "ok"]
    wrong = [line for line in written if line["different"] and not line["notes"]]
    noted = [line for line in written if line["different"] and line["notes"]]
    n_texts = sum(line["texts"] for line in written)
    print(
        f"{len(written)} models, {n_texts} texts, {sum(line['tokens'] for line in written)} tokens;"
        f" {sum(len(line['different']) for line in wrong)} texts differ, and "
        f"{sum(len(line['different']) for line in noted)} of models with a note about it"
    )
    for line in (*wrong, *noted, *(line for line in lines if line["how"] == "failed")):
        print(json.dumps(line))
    if wrong or any(line["how"] == "failed" for line in lines):
        sys.exit(1)


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    if log.exists():
        yield from map(json.loads, log.read_text().splitlines())


def _all_models(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Any]]:
    """Names, and calls that give the models, writing them first if they are tiny."""
    for name in options.models:
        if name == ZOO:
            for species in all_species():
                if species.architecture in NO_TEXT:
                    continue
                if not options.species or species.name in options.species:
                    yield species.name, lambda species=species: _tiny(species, folder)
        else:
            draft = HEAD if name == "smollm2" else None
            path = cache_folder.folder() / f"{name}.gguf"
            models = ComparedPair(path, draft, TEXTS, N_REAL, 512)
            yield name, lambda models=models: models


def _tiny(species: Any, folder: Path) -> ComparedPair:
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    write_model(target, species)
    write_model(draft, species, cousin=True)
    prompts = [zoo_trials.PROMPT, [7 + 5 * index % 280 for index in range(17)]]
    return ComparedPair(target, draft, prompts, N_TINY, zoo_trials.N_CTX)


def _compared(models: ComparedPair) -> dict[str, Any]:
    found: Texts = {}
    notes: set[str] = set()
    with _session(models, None, {}, n_parallel=3) as session:
        notes |= set(session.plan.notes)
        alone = _each(session, models)
        found["beside others"] = [
            result.tokens
            for sampling in SAMPLINGS
            for result in session.generate_many(
                models.prompts, edgespec.SamplingParams(**sampling), models.n_tokens
            )
        ]
        later = _continued(session, models, alone)
    n_greedy = len(models.prompts)
    expected = [*alone, *later]
    greedy = [text[len(text) // 2 :] for text in alone[:n_greedy]]
    different = [f"in two turns, {i}" for i in range(n_greedy) if later[i] != greedy[i]]
    for way, changes in (("guesses", False), ("changing budgets", True)):
        rules = {"lookup": True}
        with _session(models, models.draft, rules, adjustable_budget=changes) as session:
            notes |= set(session.plan.notes)
            found[way] = _each(session, models, changes) + _continued(session, models, alone)
    different += [
        f"{way}, {index}"
        for way, texts in found.items()
        for index, (text, first) in enumerate(zip(texts, expected, strict=False))
        if text != first
    ]
    texts = [*expected, *(text for texts in found.values() for text in texts)]
    return {
        "texts": len(texts),
        "tokens": sum(map(len, texts)),
        "different": different,
        "notes": [note for note in notes if "almost equally likely" in note],
    }


def _session(
    models: ComparedPair, draft: Path | None, rules: dict[str, Any], **settings: Any
) -> edgespec.Session:
    load = edgespec.LoadSettings(
        model=models.target,
        draft=draft,
        memory_budget="4GiB",
        ctx_size=models.ctx_size,
        threads=1,
        **settings,
    )
    return edgespec.load(load, edgespec.EngineSettings(**ALWAYS, **rules))


def _each(
    session: edgespec.Session, models: ComparedPair, changes: bool = False
) -> list[tuple[int, ...]]:
    """A text of each prompt for each way to sample."""
    chance, texts = random.Random(0), []
    most = session.budget.planned_bytes
    for sampling in SAMPLINGS:
        for prompt in models.prompts:
            drawn = edgespec.SamplingParams(**sampling)
            with session.stream(prompt, drawn, models.n_tokens) as generation:
                for index, _ in enumerate(generation):
                    if changes and index % 8 == 0:
                        least = session.budget.smallest_bytes
                        session.set_memory_budget(chance.randint(least, max(least, most)))
                texts.append(generation.result.tokens)
    return texts


def _continued(
    session: edgespec.Session, models: ComparedPair, texts: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Continuations of the first half of each greedy text, for each way to sample; before each,
    another text is written."""
    found = []
    for sampling in SAMPLINGS:
        drawn = edgespec.SamplingParams(**sampling)
        for prompt, whole in zip(models.prompts, texts, strict=False):
            tokens = session.encode(prompt) if isinstance(prompt, str) else list(prompt)
            half = whole[: len(whole) // 2]
            session.generate([*tokens[:5], *half[:3]], drawn, 4)
            more = session.generate([*tokens, *half], drawn, len(whole) - len(half))
            found.append(more.tokens)
    return found
