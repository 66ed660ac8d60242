"""A text for every line of a file, in the order of the lines.

python many.py big.gguf small.gguf prompts.txt
"""

import sys
from pathlib import Path

import edgespec


def main(model: str, draft: str, file: str) -> None:
    settings = edgespec.LoadSettings(
        model=model, draft=draft, memory_budget="1GiB", n_parallel="auto"
    )
    with edgespec.load(settings) as session, Path(file).open(encoding="utf-8") as lines:
        prompts = (line.rstrip("\n") for line in lines)
        for result in session.generate_many(prompts, max_tokens=32):
            print(repr(result.text), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
