"""Writes a model in another quantisation, by llama.cpp's own tool.

    python tests/measure.py requantise MODEL.gguf OUT.gguf Q8_0

The names are llama.cpp's: F16, Q8_0, Q6_K, Q4_K_M, ...
"""

from __future__ import annotations

import argparse
from pathlib import Path

from edgespec_runtimes.gguf.llama import log
from reference import quantise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("quantisation")


def measure(options: argparse.Namespace) -> None:
    with log.captured():
        quantise(options.model, options.out, options.quantisation)
    print(f"{options.out}: {options.out.stat().st_size / 2**20:,.0f} MiB")
