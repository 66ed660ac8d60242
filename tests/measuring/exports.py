"""Prints memory and texts of ONNX exports: resident, paged, and drafted by other models.

    python tests/measure.py exports FOLDER ... [--drafts DRAFT ...] [--tokens 24]

A row for each export and draft. MiB are the peak of and the plan's sum for a process that loads
both: with 2 GiB, and with the smallest budget, which pages. Then, for each, the tokens like plain
onnxruntime's, fed one by one, before the first that differs: alone and drafted, greedy and sampled
at temperature 0.8. Runs in processes of their own, one at a time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec.engine.engine import Engine
from edgespec.engine.sampling import Sampler, SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MIB
from edgespec.memory.cgroups import table
from edgespec.session.opening import open_models
from edgespec.settings.config import LoadSettings
from engine_cases import finish

PROMPT = "The history of the city of Paris begins with"
SAMPLING = (SamplingParams(), SamplingParams(temperature=0.8, seed=7))
ROOM = "2GiB"
CTX_SIZE = "512"
CHILD = "import sys; from measuring import exports; exports.{}(*sys.argv[1:])"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exports", type=Path, nargs="+")
    parser.add_argument("--drafts", type=Path, nargs="+", default=[])
    parser.add_argument("--tokens", type=int, default=24)


def measure(args: argparse.Namespace) -> None:
    print("| export | draft | resident | alone | drafted | smallest budget | alone | drafted |")
    print("| --- " * 8, "|", sep="")
    for export in args.exports:
        expected = answer("plain", export, args.tokens)
        for draft in args.drafts or [None]:
            cells = [export.name, draft.name if draft else "none"]
            budget: str | int = ROOM
            for _ in range(2):
                result = answer("loaded", export, draft or "", budget, args.tokens)
                if isinstance(result, str):
                    cells += [result, "", ""]
                    break
                peak, planned, budget = result["peak"], result["planned"], result["smallest"]
                cells.append(f"{peak / MIB:.0f} of {planned / MIB:.0f} ({peak / planned:.2f})")
                for texts in (result["alone"], result["drafted"]):
                    cells.append(", ".join(map(same, texts, expected)))
            print("|", " | ".join(cells), "|", flush=True)


def answer(what: str, *arguments: object) -> Any:
    """Output of a function of this module in a process of its own; its error's last line."""
    command = [sys.executable, "-c", CHILD.format(what), *map(str, arguments)]
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2] or f"signal {-done.returncode}"
    return json.loads(done.stdout)


def same(text: Sequence[int], expected: Sequence[int]) -> str:
    """Number of tokens before the first that differs, and of all where one does."""
    pairs = enumerate(zip(text, expected, strict=False))
    n = next((i for i, (a, b) in pairs if a != b), min(len(text), len(expected)))
    return str(n) if n == len(expected) else f"{n} of {len(expected)}"


def plain(export: str, n_tokens: str, ctx_size: str = CTX_SIZE) -> None:
    """Print what onnxruntime alone writes, token by token."""
    from edgespec_runtimes.onnx.files.source import named_model
    from onnx_reference import WholeModel

    settings = LoadSettings(model=export, memory_budget=ROOM, ctx_size=int(ctx_size))
    with open_models(settings) as models:
        prompt = models.target.vocabulary.encode(PROMPT)
        ends = models.target.vocabulary.eog_tokens
    model = WholeModel(named_model(Path(export)))
    texts = []
    for params in SAMPLING:
        model.start()
        sampler, text = Sampler(params, prompt), [*prompt]
        for token in prompt:
            logits = model.decode(token)
        while len(text) < len(prompt) + int(n_tokens):
            token = sampler.pick(logits)
            text.append(token)
            if token in ends:
                break
            logits = model.decode(token)
        texts.append(text[len(prompt) :])
    print(json.dumps(texts))


def loaded(export: str, draft: str, budget: str, n_tokens: str, ctx_size: str = CTX_SIZE) -> None:
    """Print the texts of a target alone and with its draft, and its memory."""
    settings = LoadSettings(
        model=export,
        draft=draft or None,
        memory_budget=int(budget) if budget.isdecimal() else budget,
        ctx_size=int(ctx_size),
    )
    with open_models(settings) as models:
        prompt = models.target.vocabulary.encode(PROMPT)
        texts: dict[str, list[list[int]]] = {"alone": [], "drafted": []}
        for way, found in texts.items():
            drafter = models.draft if way == "drafted" else None
            options = EngineSettings(lookup=False, step_aside=False)
            if way == "drafted" and drafter is None:
                continue
            with Engine(models.target, drafter, options) as engine:
                for params in SAMPLING:
                    result = finish(engine.generate(prompt, params, int(n_tokens)))
                    found.append([*result.tokens])
        memory = {
            "peak": table(Path("/proc/self/status"))["VmHWM"],
            "planned": sum(row.nbytes for row in models.plan.rows),
            "streamed": models.plan.streamed_bytes,
            "smallest": -(-models.plan.smallest_bytes // MIB) * MIB,
        }
    print(json.dumps(texts | memory))
