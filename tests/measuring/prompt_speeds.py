"""Compares how fast prompts are read with llama.cpp alone: tokens a second of each, in turn.

    python tests/measure.py prompt-speeds MODEL.gguf [-t 2] [--tokens 500 2000 8000] [--turns 3]
    python tests/measure.py prompt-speeds --shapes

A model is tried as stored and requantised to eight kinds of weights; `--shapes` tries models with
random weights whose heads have four shapes. llama.cpp has its default batch of 512 tokens and flash
attention. Seconds are those of the wall, medians of the turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama import loading, log
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from gguf_files import tiny_llama
from port_calls import prefill
from reference import quantise

KINDS = ("Q8_0", "Q4_K_M", "Q2_K", "IQ4_XS", "Q4_0", "Q5_1", "F16", "BF16")
SHAPES: Mapping[str, dict[str, int]] = {
    "9 heads of 64, 3 of keys": {"embedding": 576, "heads": 9, "kv_heads": 3, "head_size": 64},
    "12 heads of 128, 2 of keys": {"embedding": 1536, "heads": 12, "kv_heads": 2, "head_size": 128},
    "8 heads of 64, 8 of keys": {"embedding": 512, "heads": 8, "kv_heads": 8, "head_size": 64},
    "4 heads of 256, 1 of keys": {"embedding": 640, "heads": 4, "kv_heads": 1, "head_size": 256},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL")
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", default=KINDS)


def measure(options: argparse.Namespace) -> None:
    print(
        "| model | tokens | llama.cpp, tokens/s | edgespec, tokens/s | ratio |\n"
        + "| --- " * 5
        + "|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(options, Path(folder)):
            compare(name, path, options)


def files(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    for path in options.models:
        yield path.stem, path
        for kind in options.kinds:
            made = folder / f"{kind}.gguf"
            quantise(path, made, kind)
            yield f"{path.stem} as {kind}", made
            made.unlink()
    for name, shape in SHAPES.items() if options.shapes else ():
        model = tiny_llama(layers=8, ffn=3 * shape["embedding"], **shape)
        kind, _ = model.metadata["llama.context_length"]
        model.metadata["llama.context_length"] = kind, max(options.tokens) + 64
        yield name, model.write(folder / "shape.gguf")


def compare(name: str, path: Path, options: argparse.Namespace) -> None:
    n_ctx, n = max(options.tokens) + 64, options.threads
    llama = PromptReader(path, n_ctx, n)  # loaded second, it would be a tenth faster by its place
    prepared = runtime.prepare(ModelRequest(path, "target", n_ctx, 16, 4, n))
    own = prepared.load(None)
    prepared.close()
    n_vocab = own.info.n_vocab
    for n_tokens in options.tokens:
        prompt = [20 + 7 * i % min(250, n_vocab - 20) for i in range(n_tokens)]
        found: tuple[list[float], list[float]] = [], []
        for _ in range(options.turns):
            began = time.perf_counter()
            llama.read(prompt)
            found[0].append(time.perf_counter() - began)
            own.truncate(0)
            began = time.perf_counter()
            prefill(own, prompt)
            found[1].append(time.perf_counter() - began)
        ratio = statistics.median(a / b for a, b in zip(*found, strict=True))
        speeds = " | ".join(f"{n_tokens / statistics.median(its):.0f}" for its in found)
        print(f"| {name} | {n_tokens} | {speeds} | {ratio:.2f} |", flush=True)
    own.close()
    llama.close()


class PromptReader:
    """llama.cpp's own reading of a prompt."""

    def __init__(self, path: Path, n_ctx: int, n_threads: int) -> None:
        self._model = loading.load_resident(path, loading.NOWHERE, AbortFlag(), packed=True)
        params = lib.llama_context_default_params()
        params.n_ctx, params.flash_attn_type = n_ctx, 1
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = n_threads
        with log.captured():
            self._context: Any = lib.llama_init_from_model(self._model.handle, params)

    def read(self, prompt: list[int]) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        for begin in range(0, len(prompt), 512):
            chunk = prompt[begin : begin + 512]
            tokens = (lib.llama_token * len(chunk))(*chunk)
            assert not lib.llama_decode(self._context, lib.llama_batch_get_one(tokens, len(chunk)))
        lib.llama_synchronize(self._context)

    def close(self) -> None:
        lib.llama_free(self._context)
        self._model.close()
