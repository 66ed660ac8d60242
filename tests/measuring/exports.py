"""Prints memory and texts of ONNX exports: in memory, paged, and drafted, as a table.

    python tests/measure.py exports FOLDER ... [--drafts DRAFT ...] [--tokens 24]
    python tests/measure.py exports [--exporters PYTHON | --made FOLDER] [--write]

A row for each export and draft. MiB are the peak of and the plan's sum for a process that loads
both: with 2 GiB, and with the smallest budget, which pages. Texts fill the context, as a plan
foresees. Then, for each, the tokens like plain
onnxruntime's, fed one by one, before the first that differs: alone and drafted, greedy and sampled
at temperature 0.8. Runs in processes of their own, one at a time.

Without a FOLDER small random models of each kind are exported, each its own draft. The exporters,
at the versions of `tests/data/exporters.txt`, are installed into an environment of their own:
gigabytes. With --write the table goes between the markers of docs/models.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MIB
from edgespec.memory.cgroups import table
from edgespec.ports import LanguageModel
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.session.opening import open_models
from edgespec.settings.config import LoadSettings
from engine_cases import AskedEngine as Engine
from engine_cases import finish

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/models.md"
START, END = "<!-- table of exports -->", "<!-- end of the table -->"
TEXT = 200 * "The history of the city of Paris begins with an island and a bridge. "
SAMPLING = (SamplingParams(), SamplingParams(temperature=0.8, seed=7))
ROOM = "2GiB"
CHILD = "import sys; from measuring import exports; exports.{}(*sys.argv[1:])"
CELLS = ("in memory", "alone", "drafted", "smallest budget", "MB a pass", "alone", "drafted")
MADE_BY = {
    "llama-builder-fp32": "`builder -p fp32 -e cpu`",
    "llama-builder-int4": "`builder -p int4 -e cpu`",
    "llama-builder-int4-level1": "the same, `int4_accuracy_level=1`",
    "qwen3-builder-fp32": "`builder -p fp32 -e cpu`",
    "gemma2-builder-fp32": "`builder -p fp32 -e cpu`",
    "llama-optimum-fp32": "`main_export(..., dtype='fp32')`",
    "llama-optimum-fp16": "`main_export(..., dtype='fp16')`",
    "gpt2-optimum-fp32": "`main_export(..., dtype='fp32')`",
    "llama-optimum-int8": "fp32, `quantize_dynamic` of `MatMul`",
    "llama-optimum-q4": "fp32, `MatMulNBitsQuantizer`",
    "llama-optimum-q4f16": "fp16, `MatMulNBitsQuantizer`",
}
"""Command that exports each kind of random model, by the name of its folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exports", type=Path, nargs="*")
    parser.add_argument("--drafts", type=Path, nargs="+", default=[])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--ctx-size", type=int, default=512)
    parser.add_argument("--exporters", type=Path, help="Python that has the exporters")
    parser.add_argument("--made", type=Path, help="folder that make_exports.py has filled")
    parser.add_argument("--write", action="store_true", help="into docs/models.md, too")


def measure(args: argparse.Namespace) -> None:
    if not args.exports:
        measure_kinds(args)
        return
    print(table_of(("export", "draft", *CELLS), []))
    for export in args.exports:
        expected = answer("plain", export, args.tokens, args.ctx_size)
        for draft in args.drafts or [None]:
            measured = cells(export, draft, expected, args.tokens, args.ctx_size)
            print_row((export.name, draft.name if draft else "none", *measured))


def measure_kinds(args: argparse.Namespace) -> None:
    """Measure random models of each kind."""
    with TemporaryDirectory() as name:
        made = args.made or make(Path(name), args.exporters)
        rows = []
        for kind, command in MADE_BY.items():
            export = made / kind
            expected = answer("plain", export, args.tokens, args.ctx_size)
            measured = cells(export, export, expected, args.tokens, args.ctx_size)
            rows.append((kind, command, *measured))
            print_row(rows[-1])
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_table(page, rows), encoding="utf-8")


def make(folder: Path, python: Path | None) -> Path:
    """A folder below `folder` with an export of each kind."""
    if python is None:
        subprocess.run([sys.executable, "-m", "venv", folder / "exporters"], check=True)
        python = folder / "exporters/bin/python"
        install = [python, "-m", "pip", "install", "-q", "-r", TESTS / "data/exporters.txt"]
        subprocess.run(install, check=True)
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [python, TESTS / "data/make_exports.py", folder / "exports"]
    subprocess.run(command, check=True, env=environment)
    return folder / "exports"


def cells(
    export: Path, draft: Path | None, expected: Any, n_tokens: int, ctx_size: int
) -> list[str]:
    """The values of CELLS, as far as there are any; an error stands in for the rest."""
    if isinstance(expected, str):
        return [expected]
    found: list[str] = []
    budget: str | int = ROOM
    for _ in range(2):
        result = answer("loaded", export, draft or "", budget, n_tokens, ctx_size)
        if isinstance(result, str):
            return [*found, result]
        peak, planned = result["peak"], result["planned"]
        found.append(f"{peak / MIB:.0f} of {planned / MIB:.0f} ({peak / planned:.2f})")
        if budget != ROOM:
            found.append(f"{result['streamed'] / 1e6:.1f}")
        found += [same_tokens(result[way], expected) for way in ("alone", "drafted")]
        budget = result["smallest"]
    return found


def with_table(page: str, rows: Sequence[Sequence[str]]) -> str:
    """The page with the table of `rows` between its markers."""
    before, rest = page.split(START)
    after = rest.split(END)[1]
    return f"{before}{START}\n\n{table_of(('export', 'made by', *CELLS), rows)}\n\n{END}{after}"


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(line_of, [head, ["---"] * len(head), *rows]))


def print_row(row: Sequence[str]) -> None:
    print(line_of(row), flush=True)


def line_of(row: Sequence[str]) -> str:
    empty = [""] * (2 + len(CELLS) - len(row))
    return f"| {' | '.join([*row, *empty])} |"


def answer(what: str, *arguments: object) -> Any:
    """Output of a function of this module in a process of its own; its error's last line."""
    command = [sys.executable, "-c", CHILD.format(what), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=TESTS)
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2] or f"signal {-done.returncode}"
    return json.loads(done.stdout)


def same_tokens(texts: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> str:
    """`same` of each text; empty if there are none."""
    return ", ".join(map(same, texts, expected))


def same(text: Sequence[int], expected: Sequence[int]) -> str:
    """Number of tokens before the first that differs, and of all where one does."""
    pairs = enumerate(zip(text, expected, strict=False))
    n = next((i for i, (a, b) in pairs if a != b), min(len(text), len(expected)))
    return str(n) if n == len(expected) else f"{n} of {len(expected)}"


def prompt_for(target: LanguageModel, n_tokens: int) -> list[int]:
    """Tokens that leave room for an answer of `n_tokens` in the context."""
    return target.vocabulary.encode(TEXT)[: target.info.n_ctx - n_tokens]


def plain(export: str, n_tokens: str, ctx_size: str) -> None:
    """Print what onnxruntime alone writes, token by token."""
    from edgespec_runtimes.onnx.files.source_model import named_model
    from onnx_reference import WholeModel

    settings = LoadSettings(model=export, memory_budget=ROOM, ctx_size=int(ctx_size))
    with open_models(settings) as models:
        prompt = prompt_for(models.target, int(n_tokens))
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


def loaded(export: str, draft: str, budget: str, n_tokens: str, ctx_size: str) -> None:
    """Print the texts of a target alone and with its draft, and its memory."""
    settings = LoadSettings(
        model=export,
        draft=draft or None,
        memory_budget=int(budget) if budget.isdecimal() else budget,
        ctx_size=int(ctx_size),
    )
    with open_models(settings) as models:
        prompt = prompt_for(models.target, int(n_tokens))
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
