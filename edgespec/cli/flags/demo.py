"""The flags of `edgespec demo` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

SIZE = "512MiB"
TOKENS = 40


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Complete a Python function with a model about twice as large as its memory budget,\n"
        "first alone, then with a draft. The model comes with edgespec and is enlarged once, to a\n"
        "file in the cache folder: it writes the same text, at the cost of its new size."
    )
    parser.add_argument(
        "--pair",
        metavar="NAME",
        help="embedded, or a real model that is downloaded once: smollm2, qwen2.5-coder (default: "
        "embedded)",
    )
    parser.add_argument(
        "--size", metavar="SIZE", help=f"size of the enlarged model (default: {SIZE})"
    )
    parser.add_argument(
        "-n", "--n-predict", metavar="N", dest="max_tokens", help=f"tokens (default: {TOKENS})"
    )
