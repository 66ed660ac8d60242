"""Compares models in memory with llama.cpp alone: texts, passes of several rows, and draws.

    python tests/measure.py resident MODEL.gguf ... [-t 2] [-n 48] [--turns 6]

Texts: milliseconds per token, greedy, without a draft; each contender in a process of its own, in
turn. "fixed" has llama.cpp's threads spin 1,000 turns always, as the command line did before.
Passes: milliseconds of processor time in one process and one thread, in turn: least, and median of
the ratio to llama.cpp's own with weights as stored. Draws: the same for a token of 151,936.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import edgespec
from edgespec.concurrency.spinning import SHORT
from edgespec.rules.sampling import Sampler
from edgespec.runtimes import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama import loading, log
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from one_tree import ROOT, OneTree
from port_calls import evaluate, prefill

ROWS = (1, 2, 3, 4, 5, 8, 16)
CTX, N_PROMPT, N_VOCAB = 1024, 64, 151_936
PROMPT = [20 + 7 * i % 250 for i in range(N_PROMPT)]
CONTENDERS: Mapping[str, tuple[str, str | None]] = {
    "llama.cpp": ("llama", None),
    "edgespec, fixed": ("edgespec", "1000"),
    "edgespec": ("edgespec", str(SHORT)),
}
"""The ways that are compared, and their GOMP_SPINCOUNT."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-n", "--tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=20, help="passes of each size")
    parser.add_argument("--only", choices=("texts", "passes", "draws"))
    parser.add_argument("--child", choices=("llama", "edgespec"), help=argparse.SUPPRESS)


def measure(options: argparse.Namespace) -> None:
    if options.child:
        answer_turns(options)
        return
    if options.only in (None, "texts"):
        print(
            "| texts | ms per token: median | least | to llama.cpp, in turn |\n"
            + "| --- " * 4
            + "|"
        )
        for path in options.models:
            texts(path, options)
    if options.only in (None, "passes"):
        print(
            "\n| passes | rows | llama.cpp, ms | packed | edgespec | ratios |\n"
            + "| --- " * 6
            + "|"
        )
        for path in options.models:
            passes(path, options.repeats)
    if options.only in (None, "draws"):
        draws()


def texts(path: Path, options: argparse.Namespace) -> None:
    with ExitStack() as owned:
        children = {}
        for name, (kind, spins) in CONTENDERS.items():
            environ = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
            environ |= {"GOMP_SPINCOUNT": spins} if spins else {}
            command = [sys.executable, *sys.argv[:1], "resident", str(path), "--child", kind]
            command += ["-t", str(options.threads), "-n", str(options.tokens)]
            children[name] = owned.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
                )
            )
        found: dict[str, list[float]] = {name: [] for name in children}
        for _ in range(options.turns + 1):
            for name, child in children.items():
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write("go\n")
                child.stdin.flush()
                found[name].append(float(child.stdout.readline()))
    llama = found["llama.cpp"][1:]
    for name, (_, *each) in found.items():
        ratio = statistics.median(a / b for a, b in zip(each, llama, strict=True))
        median = statistics.median(each)
        print(f"| {path.name}, {name} | {median:.2f} | {min(each):.2f} | {ratio:.3f} |", flush=True)


def answer_turns(options: argparse.Namespace) -> None:
    """For each line, write a text and print its milliseconds per token."""
    write = (llama_text if options.child == "llama" else own_text)(options)
    for _ in sys.stdin:
        print(write(), flush=True)


def own_text(options: argparse.Namespace) -> Callable[[], float]:
    load = edgespec.LoadSettings(model=options.models[0], ctx_size=CTX, threads=options.threads)
    session = edgespec.load(load, edgespec.EngineSettings(lookup=False, remember=False))
    greedy = edgespec.SamplingParams(temperature=0)

    def write() -> float:
        stream = session.stream(PROMPT, greedy, options.tokens + 1)
        next(stream)
        began = time.perf_counter()
        n_tokens = sum(1 for _ in stream)
        return 1e3 * (time.perf_counter() - began) / n_tokens

    return write


def llama_text(options: argparse.Namespace) -> Callable[[], float]:
    model = LlamaAlone(options.models[0], options.threads, packed=True)

    def write() -> float:
        logits = model.decode(PROMPT, 0)
        began = time.perf_counter()
        for n in range(options.tokens):
            logits = model.decode([int(logits[-1].argmax())], N_PROMPT + n)
        wall_s = time.perf_counter() - began
        model.forget_from(0)
        return 1e3 * wall_s / options.tokens

    return write


class LlamaAlone:
    """llama.cpp's own decoding of one sequence, with flash attention."""

    def __init__(self, path: Path, n_threads: int, packed: bool) -> None:
        as_stored = () if packed else None
        self._model = loading.load_resident(path, loading.NOWHERE, AbortFlag(), None, as_stored)
        params = lib.llama_context_default_params()
        params.n_ctx, params.flash_attn_type = CTX, 1
        params.n_threads = params.n_threads_batch = n_threads
        with log.captured():
            self._context: Any = lib.llama_init_from_model(self._model.handle, params)
        self._batch = lib.llama_batch_init(CTX, 0, 1)

    def decode(self, tokens: Sequence[int], position: int) -> np.ndarray:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position + i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert not lib.llama_decode(self._context, batch)
        shape = (len(tokens), self._model.n_vocab)
        return np.ctypeslib.as_array(lib.llama_get_logits(self._context), shape)

    def forget_from(self, position: int) -> None:
        lib.llama_memory_seq_rm(lib.llama_get_memory(self._context), 0, position, -1)


def passes(path: Path, repeats: int) -> None:
    prepared = runtime.prepare(ModelRequest(path, "target", CTX, max(ROWS), 4, 1))
    own = prepared.load(None)
    prepared.close()
    prefill(own, PROMPT)
    stored, packed = LlamaAlone(path, 1, packed=False), LlamaAlone(path, 1, packed=True)
    for llama in (stored, packed):
        llama.decode(PROMPT, 0)

    def line(n_rows: int) -> None:
        tree, nodes = OneTree(30), [ROOT]
        for i in range(1, n_rows):
            nodes.append(tree.add(nodes[-1], 30 + i, 0.9))
        evaluate(own, tree, nodes)

    for n in ROWS:
        tokens = [*range(30, 30 + n)]
        found: list[list[float]] = [[], [], []]
        for _ in range(repeats + 1):
            for its, llama in zip(found, (stored, packed), strict=False):
                its.append(processor_ms(llama.decode, tokens, N_PROMPT))
                llama.forget_from(N_PROMPT)
            found[2].append(processor_ms(line, n))
            own.truncate(N_PROMPT)
        ratios = [
            statistics.median(a / b for a, b in zip(its[1:], found[0][1:], strict=True))
            for its in found[1:]
        ]
        least = " | ".join(f"{min(its[1:]):.1f}" for its in found)
        print(f"| {path.name} | {n} | {least} | {ratios[0]:.2f}, {ratios[1]:.2f} |", flush=True)
    own.close()


def draws() -> None:
    noise = np.random.default_rng(0)
    logits = (2 * noise.standard_normal(N_VOCAB)).astype(np.float32)
    logits[noise.integers(0, N_VOCAB, 30)] += 8
    print("\n| a draw | edgespec, ms | llama.cpp, ms |\n| --- | --- | --- |")
    for name, settings, samplers in (
        ("greedy", {"temperature": 0}, [lib.llama_sampler_init_greedy()]),
        ("temperature 0.8", {"temperature": 0.8}, last_samplers()),
        (
            "and top-k 40, top-p 0.95",
            {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
            [
                lib.llama_sampler_init_top_k(40),
                lib.llama_sampler_init_top_p(0.95, 1),
                *last_samplers(),
            ],
        ),
    ):
        sampler = Sampler(edgespec.SamplingParams(**settings))
        each = chain(samplers)
        own_ms = min(processor_ms(sampler.pick, logits) for _ in range(100))
        its_ms = min(processor_ms(each, logits) for _ in range(100))
        print(f"| {name} | {own_ms:.2f} | {its_ms:.2f} |", flush=True)


def last_samplers() -> list[Any]:
    return [lib.llama_sampler_init_temp(0.8), lib.llama_sampler_init_dist(1)]


def chain(samplers: Sequence[Any]) -> Callable[[np.ndarray], None]:
    whole = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for sampler in samplers:
        lib.llama_sampler_chain_add(whole, sampler)
    data = (lib.llama_token_data * N_VOCAB)()
    fields: Any = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
    candidates, ids = np.frombuffer(data, fields), np.arange(N_VOCAB)

    def draw(logits: np.ndarray) -> None:
        candidates["id"], candidates["logit"] = ids, logits
        array = lib.llama_token_data_array(data, N_VOCAB, -1, False)
        lib.llama_sampler_apply(whole, array)

    return draw


def processor_ms(call: Callable[..., object], *arguments: Any) -> float:
    began = time.process_time()
    call(*arguments)
    return 1e3 * (time.process_time() - began)
