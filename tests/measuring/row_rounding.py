"""Prints which numbers of rows round otherwise than one, by the type of the weights, here.

    python tests/measure.py row-rounding [MODEL.gguf] [--types Q4_K_M Q2_K] [--prompt 70]

The first table is of llama.cpp's own products with each tensor type, as stored and packed. The
second is of MODEL (the embedded target), requantised: logits of edgespec's passes of 2 to 16 rows
beside passes of one, resident and paged, and whether both have the same ones.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel
from edgespec.runtimes import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.layout import KINDS
from edgespec_runtimes.gguf.kernels.batch_invariance import RowTrial
from edgespec_runtimes.gguf.kernels.packer import packs_invariantly
from edgespec_runtimes.gguf.llama import ggml, loading
from edgespec_runtimes.gguf.llama.quantiser import FILE_TYPES, quantise
from edgespec_runtimes.gguf.weights.packing import multiplied_matrices, packed_matrices
from one_tree import ROOT, OneTree
from paging_contract import load_paged, one_by_one
from port_calls import evaluate, prefill

MOST_ROWS = 16
N_IN, N_OUT = 512, 72
TENSORS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0", "F16", "BF16", "F32"),
)
FILES = (
    *("Q4_K_M", "Q5_K_M", "Q6_K", "Q3_K_M", "Q2_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q8_0"),
    *("F16", "BF16", "F32"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, nargs="?", default=embedded_pair().target)
    parser.add_argument("--types", nargs="*", choices=FILE_TYPES, default=FILES, metavar="TYPE")
    parser.add_argument("--prompt", type=int, default=70)


def measure(options: argparse.Namespace) -> None:
    print(f"{loading.build()}\n\n| tensors | as stored | packed | edgespec packs |")
    print("| --- " * 4 + "|")
    for name in TENSORS:
        print(f"| {name} | {' | '.join(of_kernels(name))} |", flush=True)
    print(
        "\n| file | tensors | packed | resident | paged | resident is paged |\n"
        + "| --- " * 6
        + "|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in options.types:
            path = Path(folder) / f"{name}.gguf"
            quantise(options.model, path, name)
            print(f"| {name} | {' | '.join(of_model(path, options.prompt))} |", flush=True)
            path.unlink()


def of_kernels(name: str) -> Iterator[str]:
    """Rows that differ as stored and packed by llama.cpp, and whether edgespec packs the type."""
    kind = KINDS[name].code
    yield varying(RowTrial(kind, N_IN, N_OUT, ggml.plain_buffer_type()))
    packs = ggml.packing_buffer_type(kind, N_IN, N_OUT)
    yield varying(RowTrial(kind, N_IN, N_OUT, packs)) if packs is not None else "never"
    yield "yes" if packs_invariantly(kind, N_IN, N_OUT) else "no"


def varying(trial: RowTrial) -> str:
    alone = b"".join(map(trial.alone, range(MOST_ROWS)))
    size = trial.product_bytes
    return listed(lambda n: trial.together(n) != alone[: n * size])


def listed(differs: Callable[[int], bool]) -> str:
    return " ".join(str(n) for n in range(2, MOST_ROWS + 1) if differs(n)) or "same"


def of_model(path: Path, n_prompt: int) -> Iterator[str]:
    header = read_header(path)
    kinds = Counter(tensor.type.name for tensor in multiplied_matrices(header))
    packed = Counter(tensor.type.name for tensor in packed_matrices(header))
    for counted in (kinds, packed):
        yield ", ".join(f"{n} {kind}" for kind, n in counted.most_common()) or "none"
    found = []
    for is_paged in (False, True):
        model = opened(path, is_paged, n_prompt)
        told, logits = of_passes(model, n_prompt)
        model.close()
        yield told
        found.append(logits)
    same = np.array_equal(*found)
    yield "yes" if same else f"no: {np.abs(found[0] - found[1]).max():.3f}"


def opened(path: Path, is_paged: bool, n_prompt: int) -> LanguageModel:
    n_ctx = n_prompt + 2 * MOST_ROWS
    prepared = runtime.prepare(ModelRequest(path, "target", n_ctx, MOST_ROWS, 4, 1))
    if is_paged:
        return load_paged(prepared, 0.4)
    try:
        return prepared.load(None)
    finally:
        prepared.close()


def of_passes(model: LanguageModel, n_prompt: int) -> tuple[str, np.ndarray]:
    """Numbers of rows whose logits differ from single ones, and the single ones."""
    tokens = [20 + 7 * i % 250 for i in range(n_prompt + MOST_ROWS)]
    prefill(model, tokens[:n_prompt])
    alone = one_by_one(model, tokens[n_prompt:])

    def differs(n_rows: int) -> bool:
        model.truncate(n_prompt)
        tree, node = OneTree(tokens[n_prompt]), ROOT
        nodes = [node]
        for token in tokens[n_prompt + 1 : n_prompt + n_rows]:
            node = tree.add(node, token, 0.9)
            nodes.append(node)
        return not np.array_equal(evaluate(model, tree, nodes), alone[:n_rows])

    return listed(differs), alone
