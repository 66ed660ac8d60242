"""Prompts that no model of the recipe has seen: the heads of functions of the held-out modules.
Reads the standard library's source; knows no tokens and no models."""

from __future__ import annotations

import argparse
import ast
import json
import random
from collections.abc import Iterator
from pathlib import Path

from corpus import HELD_OUT_MODULES, list_sources, standard_library

SEED = 20240924


def function_heads(root: Path) -> Iterator[tuple[str, str]]:
    """Name and source, from `def` to the end of the docstring, of every documented function that
    stands at the top of a held-out module."""
    for source in list_sources(root):
        if source.split != "held_out":
            continue
        text = (root / source.path).read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                head = "".join(lines[node.lineno - 1 : node.body[0].end_lineno])
                yield f"{source.path}:{node.name}", head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="JSONL file to write")
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--longest", type=int, default=600, help="characters of a head")
    options = parser.parse_args()
    heads = function_heads(standard_library())
    short = [pair for pair in heads if len(pair[1]) <= options.longest]
    chosen = random.Random(SEED).sample(short, min(options.number, len(short)))
    rows = [json.dumps({"name": name, "prompt": head}) + "\n" for name, head in sorted(chosen)]
    options.out.write_text("".join(rows), encoding="utf-8")
    print(f"{len(rows)} of {len(short)} heads, from {', '.join(sorted(HELD_OUT_MODULES))}")


if __name__ == "__main__":
    main()
