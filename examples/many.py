"""A text for every line of a file, in the order of the lines.

python many.py big.gguf small.gguf prompts.txt
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import edgespec


def main(model: str, draft: str, file: str) -> None:
    settings = edgespec.LoadSettings(
        model=model, draft=draft, memory_budget="1GiB", n_parallel="auto"
    )
    prompts = Path(file).read_text(encoding="utf-8").splitlines()
    with edgespec.load(settings) as session:
        write = partial(session.generate, max_tokens=32)
        # twice as many threads as texts at once, so that the next one already waits in line
        with ThreadPoolExecutor(2 * session.n_parallel) as pool:
            for result in pool.map(write, prompts):
                print(repr(result.text), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
