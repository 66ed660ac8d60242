"""Prints processor time per token of a resident export, beside onnxruntime-genai's, in turn.

    python tests/measure.py genai EXPORT GENAI_PYTHON [--prompts 182 1910] [--rounds 5]

EXPORT is a folder that onnxruntime-genai's builder wrote, GENAI_PYTHON an interpreter that has
onnxruntime-genai. Both read the same tokens and continue them greedily with as many threads, in
processes of their own, in turn. Medians of the rounds in milliseconds of all threads: until the
first token is there, and for each later one. The last column counts the tokens before the first
that differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgespec.engine.settings import EngineSettings
from edgespec.rules.sampling import SamplingParams
from edgespec.session.opening import open_models
from edgespec.settings.config import LoadSettings
from engine_cases import AskedEngine as Engine

GENAI = """
import json, sys, time
import onnxruntime_genai as og

folder, n_threads, n_ctx = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
options = {"intra_op_num_threads": n_threads, "session.intra_op.allow_spinning": "0"}
config = og.Config(folder)
config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
model = og.Model(config)
for line in sys.stdin:
    prompt, n_tokens = json.loads(line)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=n_ctx, do_sample=False)
    generator = og.Generator(model, params)
    times = [time.process_time()]
    generator.append_tokens(prompt)
    while len(times) <= n_tokens and not generator.is_done():
        generator.generate_next_token()
        times.append(time.process_time())
    tokens = [int(token) for token in generator.get_sequence(0)[len(prompt):]]
    print(json.dumps([times, tokens]), flush=True)
    del generator
"""
OURS = "import sys; from measuring.genai import serve; serve(sys.argv[1], *map(int, sys.argv[2:]))"
TEXT = Path(__file__).parents[2] / "docs" / "how-it-works.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("export", type=Path)
    parser.add_argument("genai_python", type=Path)
    parser.add_argument("--prompts", type=int, nargs="+", default=(182, 1910), help="tokens")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=1)


def measure(args: argparse.Namespace) -> None:
    arguments = [str(args.export), str(args.threads), str(max(args.prompts) + args.tokens + 8)]
    print("| prompt | prompt, ours | genai's | ratio | token, ours | genai's | ratio | same |")
    print("| --- " * 8, "|", sep="")
    with (
        worker([sys.executable, "-c", OURS, *arguments]) as ours,
        worker([str(args.genai_python), "-c", GENAI, *arguments]) as theirs,
    ):
        text = asked(ours, None)
        for n_prompt in args.prompts:
            rows = []
            for i in range(args.rounds):
                prompt = text[7 * i : 7 * i + n_prompt]
                answers = [asked(one, [prompt, args.tokens]) for one in (ours, theirs)]
                rows.append([*costs(answers[0]), *costs(answers[1]), same(*answers)])
            columns = list(zip(*rows, strict=True))
            prompt_ms, token_ms, their_prompt_ms, their_token_ms = map(
                statistics.median, columns[:4]
            )
            print(
                f"| {n_prompt:,} | {prompt_ms:.2f} | {their_prompt_ms:.2f} | "
                f"{prompt_ms / their_prompt_ms:.2f} | {token_ms:.2f} | {their_token_ms:.2f} | "
                f"{token_ms / their_token_ms:.2f} | {min(columns[4])} |",
                flush=True,
            )


@contextmanager
def worker(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    folder = Path(__file__).parents[1]
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def asked(process: subprocess.Popen[str], request: object) -> Any:
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def costs(answer: tuple[Sequence[float], Sequence[int]]) -> tuple[float, float]:
    """Milliseconds per prompt token, of all until the first token is there, and per later token."""
    (begin, first, *others), _ = answer
    return 1000 * (first - begin), 1000 * (others[-1] - first) / len(others)


def same(one: tuple[Any, Sequence[int]], other: tuple[Any, Sequence[int]]) -> int:
    """Number of tokens before the first that differs."""
    pairs = zip(one[1], other[1], strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one[1]), len(other[1])))


def serve(export: str, n_threads: int, n_ctx: int) -> None:
    """Answer requests from stdin: null for a long text's tokens, or a prompt to continue."""
    settings = LoadSettings(model=export, ctx_size=n_ctx, threads=n_threads)
    with (
        open_models(settings) as models,
        Engine(models.target, settings=EngineSettings(lookup=False)) as engine,
    ):
        for line in sys.stdin:
            request = json.loads(line)
            if request is None:
                vocabulary = models.target.vocabulary
                print(json.dumps(vocabulary.encode(TEXT.read_text())), flush=True)
                continue
            prompt, n_tokens = request
            times, tokens = [time.process_time()], []
            for event in engine.generate(prompt, SamplingParams(), n_tokens):
                times.append(time.process_time())
                tokens.append(event.token)
            print(json.dumps([times, tokens]), flush=True)
