"""Records which experts a model's layers choose, and says what a cache would have read for them.

Written over the bindings and without edgespec's cache: what it is held against.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.paging.eviction import LeastLikely
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib

Pass = list[tuple[int, np.ndarray]]
"""In the order of computing: a layer's number, and what its tokens chose, int32 [tokens, used]."""

CHOICE = b"ffn_moe_topk-"


def record(path: Path, tokens: Sequence[int], n_new: int, n_ctx: int = 512) -> list[Pass]:
    """Experts chosen for `tokens`, one by one, and for so many more that the model picks itself."""
    model, _ = loading.load_mapped(path)
    seen: list[Pass] = []

    @lib.ggml_backend_sched_eval_callback  # type: ignore[untyped-decorator, unused-ignore]
    def watch(node: int, ask: bool, _: Any) -> bool:
        name = abi.name_of(node)
        if name.startswith(CHOICE):
            if not ask:
                layer = int(name.removeprefix(CHOICE))
                seen[-1].append((layer, abi.values_of(node, np.int32)[0, 0].copy()))
            return True
        return not ask

    shape = contexts.ContextShape(n_ctx, n_batch=32, n_outputs=1, n_branches=1, n_threads=1)
    stop = AbortFlag()
    context = contexts.new_context(model, shape, watch, stop)
    text = list(tokens)
    for position in range(len(tokens) + n_new):
        seen.append([])
        batch = lib.llama_batch_get_one((ctypes.c_int32 * 1)(text[position]), 1)
        assert lib.llama_decode(context, batch) == 0
        if position + 1 == len(text):
            logits = np.ctypeslib.as_array(lib.llama_get_logits(context), (model.n_vocab,))
            text.append(int(logits.argmax()))
    lib.llama_free(context)
    model.close()
    return seen


def batched(passes: Sequence[Pass], size: int) -> list[Pass]:
    """The same tokens, so many a pass."""
    return [
        [
            (layer, np.concatenate([one[index][1] for one in passes[begin : begin + size]]))
            for index, (layer, _) in enumerate(passes[begin])
        ]
        for begin in range(0, len(passes), size)
    ]


def of_layer(passes: Sequence[Pass], layer: int) -> list[Pass]:
    """The same tokens of a model that has no other layer."""
    return [[(0, dict(one)[layer])] for one in passes]


def distinct(passes: Sequence[Pass], size: int) -> float:
    """Experts of a layer that so many neighbouring tokens choose together, on average."""
    whole = len(passes) // size * size
    return float(
        np.mean([len(np.unique(ids)) for one in batched(passes[:whole], size) for _, ids in one])
    )


def misses(passes: Iterable[Pass], eviction: LeastLikely, n_fitting: int) -> list[int]:
    """Experts read in every pass, by a cache that holds so many, whatever their layers."""
    there: set[tuple[int, int]] = set()
    counts = []
    for one in passes:
        counts.append(0)
        for layer, ids in one:
            chosen = [int(expert) for expert in np.unique(ids)]
            held = {(layer, expert) for expert in chosen}
            eviction.use(layer, ids)
            for expert in chosen:
                if (layer, expert) in there:
                    continue
                counts[-1] += 1
                if len(there) == n_fitting:
                    victim = eviction.victim(lambda *unit, held=held: unit not in held)
                    assert victim is not None
                    eviction.remove(*victim)
                    there.remove(victim)
                eviction.add(layer, expert)
                there.add((layer, expert))
    return counts


def fewest_misses(passes: Sequence[Pass], n_fitting: int) -> list[int]:
    """The same with a cache that knows the future (Belady's rule)."""
    order = [
        (number, (layer, int(expert)))
        for number, one in enumerate(passes)
        for layer, ids in one
        for expert in np.unique(ids)
    ]
    next_use = [0] * len(order)
    later: dict[tuple[int, int], int] = {}
    for place in range(len(order) - 1, -1, -1):
        next_use[place] = later.get(order[place][1], len(order))
        later[order[place][1]] = place
    there: dict[tuple[int, int], int] = {}
    counts = [0] * len(passes)
    for place, (number, unit) in enumerate(order):
        if unit not in there:
            counts[number] += 1
            if len(there) == n_fitting:
                del there[max(there, key=lambda other: there[other])]
        there[unit] = next_use[place]
    return counts
