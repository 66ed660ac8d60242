"""Prints how a mixture routes: distinct experts of neighbouring tokens, hits of a least recently
used list of every layer, and reads of edgespec's cache beside the fewest possible.

    python tests/measure.py routing MODEL.gguf [--tokens 400] [--warm-up 64] [--pass-tokens 1 4 16]

The text is source that the recipe's models have not learnt. Shares are of all experts.

    python tests/measure.py routing MODEL.gguf --run RESULT.json

prints instead the bytes that `edgespec generate --no-draft --json RESULT.json` read for a token,
beside the fewest with the same room.
"""

from __future__ import annotations

import argparse
import inspect
import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from edgespec.paging.eviction import LeastLikely
from edgespec_runtimes.gguf.file.header import read_header
from expert_routing import Pass, batched, distinct, fewest_misses, misses, of_layer, record
from least_recent import LeastRecent

SHARES = (0.12, 0.25, 0.5)
NEIGHBOURS = (1, 2, 4, 8, 16)


def choices(path: Path, n_tokens: int) -> list[Pass]:
    source = inspect.getsource(textwrap.TextWrapper).encode()
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    tokens = model.tokenize(source, add_bos=False)[:n_tokens]
    return record(path, tokens, n_new=0, n_ctx=n_tokens)


def locality(passes: Sequence[Pass], n_experts: int, warm_up: int) -> Iterator[str]:
    counts = ", ".join(f"{distinct(passes, size):.1f}" for size in NEIGHBOURS)
    yield f"distinct experts of {', '.join(map(str, NEIGHBOURS))} tokens: {counts}"
    by_layer = [of_layer(passes, layer) for layer, _ in passes[0]]
    n_used = passes[0][0][1].shape[1]
    for share in SHARES:
        room = max(n_used, round(share * n_experts))
        missed = [misses(one, LeastRecent([n_experts]), room)[warm_up:] for one in by_layer]
        hits = [1 - np.mean(counts) / n_used for counts in missed]
        spread = f"{min(hits):.0%} to {max(hits):.0%}"
        yield f"list of {room} of each layer: hits {np.mean(hits):.1%} ({spread} by layer)"


def reads(passes: Sequence[Pass], n_experts: int, warm_up: int, pass_tokens: int) -> Iterator[str]:
    """Lines about experts read in a pass of so many tokens, by the room for experts."""
    numbers = {layer: index for index, (layer, _) in enumerate(passes[0])}
    numbered = [[(numbers[layer], ids) for layer, ids in one] for one in passes]
    whole = batched(numbered[: len(passes) // pass_tokens * pass_tokens], pass_tokens)
    everything, begin = [n_experts] * len(numbers), warm_up // pass_tokens
    by_layer = [len(np.unique(ids)) for one in whole for _, ids in one]
    chosen = np.mean(by_layer) * len(numbers)
    for share in SHARES:
        room = round(share * sum(everything))
        if room < max(by_layer):
            continue  # a layer's experts would come in rounds
        ours = np.mean(misses(whole, LeastLikely(everything), room)[begin:])
        fewest = np.mean(fewest_misses(whole, room)[begin:])
        yield (
            f"{pass_tokens} tokens a pass, room for {share:.0%}: chosen {chosen:.1f}, read "
            f"{ours:.1f}, fewest {fewest:.1f}: {ours / fewest:.2f} times"
        )


def of_run(path: Path, result: dict[str, Any]) -> str:
    """The prompt but its last token is one pass, then every token is."""
    rounds, experts = result["speculation"]["round_costs"], result["paging"]["experts"]
    planned, n_prompt = result["plan"]["experts"], len(result["prompt_tokens"]) - 1
    tokens = [*result["prompt_tokens"], *result["tokens"]]
    alone = record(path, tokens[:-1], n_new=0, n_ctx=len(tokens))
    passes = [*batched(alone[:n_prompt], n_prompt), *alone[n_prompt:]]
    expert_bytes = planned["room_bytes"] / planned["n_layers"] / planned["n_experts"]
    room = int(experts["cache_bytes"] / expert_bytes)
    missed = float(np.mean(fewest_misses(passes, room)[1:]))
    fewest = missed * experts["bytes_read"] / experts["misses"] + result["plan"]["streamed_bytes"]
    read = float(np.mean([one["bytes_read"] for one in rounds]))
    share = experts["cache_bytes"] / planned["room_bytes"]
    return (
        f"room for {share:.0%} of the experts: {read / 1e6:.2f} MB a token, fewest "
        f"{fewest / 1e6:.2f}: {read / fewest:.2f} times"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--warm-up", type=int, default=64, help="first tokens, not counted")
    parser.add_argument("--pass-tokens", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--run", type=Path, metavar="RESULT.json")


def measure(options: argparse.Namespace) -> None:
    if options.run:
        print(of_run(options.model, json.loads(options.run.read_text(encoding="utf-8"))))
        return
    header = read_header(options.model)
    n_experts = header.integer(header.key("expert_count"))
    passes = choices(options.model, options.tokens)
    for line in locality(passes, n_experts, options.warm_up):
        print(line)
    for size in options.pass_tokens:
        for line in reads(passes, n_experts, options.warm_up, size):
            print(line)
