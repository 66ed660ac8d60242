"""Prints which exports of small random models run, in memory, paged and drafted, as a table.

    python tests/measure.py coverage [--exporters PYTHON | --exports FOLDER] [--write]

A row for each kind, which is its own draft. The exporters, at the versions of
`tests/data/exporters.txt`, are installed into an environment of their own: gigabytes. With
--write the table goes between the markers of docs/models.md, after every row.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from edgespec.memory.budget import MIB
from measuring.exports import ROOM, answer, same

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/models.md"
START, END = "<!-- table of exports -->", "<!-- end of the table -->"
TOKENS, CTX_SIZE = 24, 256
HEAD = ("export", "made by", "in memory", "smallest budget", "paged, MB", "alone", "drafted")
COMMANDS = {
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--exporters", type=Path, help="Python that has the exporters")
    parser.add_argument("--exports", type=Path, help="folder that make_exports.py has filled")
    parser.add_argument("--write", action="store_true", help="into docs/models.md, too")


def measure(args: argparse.Namespace) -> None:
    with TemporaryDirectory() as name:
        exports = args.exports or make(Path(name), args.exporters)
        rows: list[Sequence[str]] = []
        for kind, command in COMMANDS.items():
            rows.append((kind, command, *cells(exports / kind)))
            print(*rows[-1], sep=" | ", flush=True)
            if args.write:
                page = PAGE.read_text(encoding="utf-8")
                PAGE.write_text(with_table(page, rows), encoding="utf-8")


def make(folder: Path, python: Path | None) -> Path:
    if python is None:
        subprocess.run([sys.executable, "-m", "venv", folder / "exporters"], check=True)
        python = folder / "exporters/bin/python"
        install = [python, "-m", "pip", "install", "-q", "-r", TESTS / "data/exporters.txt"]
        subprocess.run(install, check=True)
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [python, TESTS / "data/make_exports.py", folder / "exports"]
    subprocess.run(command, check=True, env=environment)
    return folder / "exports"


def cells(export: Path) -> list[str]:
    """Memory in memory and paged, and the tokens like plain onnxruntime's; or the error."""
    expected = answer("plain", export, TOKENS, CTX_SIZE)
    if isinstance(expected, str):
        return [expected]
    memory, alone, drafted = [], [], []
    budget: int | str = ROOM
    for _ in range(2):
        result = answer("loaded", export, export, budget, TOKENS, CTX_SIZE)
        if isinstance(result, str):
            return [*memory, result]
        memory.append(f"{result['peak'] / MIB:.0f} of {result['planned'] / MIB:.0f}")
        alone += map(same, result["alone"], expected)
        drafted += map(same, result["drafted"], expected)
        budget = result["smallest"]
    return [*memory, f"{result['streamed'] / 1e6:.2f}", ", ".join(alone), ", ".join(drafted)]


def with_table(page: str, rows: Sequence[Sequence[str]]) -> str:
    """The page with the table of `rows` between its markers."""
    before, rest = page.split(START)
    after = rest.split(END)[1]
    lines = [HEAD, ["---"] * len(HEAD), *([*row, *[""] * (len(HEAD) - len(row))] for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{before}{START}\n\n{table}\n\n{END}{after}"
