"""Baselines with llama.cpp's own decoding: mapped, resident, linear speculation.

For comparison only: they use neither edgespec's paging nor its engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.concurrency.owning import Closeable
from edgespec.errors import EdgespecError, UsageError
from edgespec.ports.baselines import (
    Baseline,
    BaselineRequest,
    BaselineRun,
    measured,
)
from edgespec.values import RoundStats
from edgespec_runtimes.gguf.context.rows import RowBatch, Rows, fill
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.heads import is_head
from edgespec_runtimes.gguf.llama import loading, log
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.llama.openmp import spinning_threads
from edgespec_runtimes.gguf.llama.vocabulary import GgufVocabulary

MMAP, RESIDENT, LINEAR = "mmap", "resident", "llama-linear-3"

LIBRARY = f"llama-cpp-python {loading.version()}"
BASELINES: Sequence[Baseline] = (
    Baseline(MMAP, "llama.cpp, weights mapped from the file and not repacked"),
    Baseline(
        RESIDENT,
        "llama.cpp, weights in memory, repacked for the CPU where that works",
        resident=True,
    ),
    Baseline(LINEAR, "llama.cpp's linear speculation, both mapped: 3 guesses", True),
)
_N_GUESSES = 3
"""llama.cpp's `--draft-max`."""


def run(name: str, request: BaselineRequest) -> BaselineRun:
    """Continue the prompts with baseline `name`. Raises ModelError and UsageError."""
    with ExitStack() as owned:
        began = time.perf_counter()
        target = owned.enter_context(_LlamaModel(request.model, request, name == RESIDENT))
        draft = None
        if name == LINEAR:
            if request.draft is None:
                raise UsageError(f"{name} needs a draft: name one with -md")
            if is_head(read_header(request.draft)):
                raise UsageError(
                    f"{name} drafts with a whole model, and {request.draft} is a head, which reads "
                    "the target's hidden states: name another draft with -md"
                )
            draft = owned.enter_context(_LlamaModel(request.draft, request, False))
        load_s = time.perf_counter() - began

        def read(tokens: Sequence[int]) -> None:
            for model in (target, draft):
                if tokens and model is not None:
                    model.read(tokens, 0, is_prompt=True)

        decode = partial(_decoded, request, target, draft)
        return measured(request, load_s, target.vocabulary, read, decode)


def _decoded(
    request: BaselineRequest, target: _LlamaModel, draft: _LlamaModel | None, prompt: Sequence[int]
) -> tuple[list[int], list[RoundStats]]:
    """Decode by the algorithm of llama.cpp's example `speculative-simple`.

    The draft guesses a few tokens; one batch of the target verifies them: a guess is accepted if it
    is what the target picks there. The draft then reads the same batch again. Without a draft, a
    pass gives one token.
    """
    tokens: list[int] = []
    rounds: list[RoundStats] = []
    last = prompt[-1]
    while len(tokens) < request.n_tokens and not (tokens and target.is_end(last)):
        began = time.perf_counter()
        n_past = len(prompt) - 1 + len(tokens)
        room = min(request.n_tokens - len(tokens) - 1, request.ctx_size - n_past - 2)
        batch = [last]
        for place in range(min(_N_GUESSES, room) if draft is not None else 0):
            assert draft is not None
            batch.append(int(draft.read(batch[-1:], n_past + place)[-1].argmax()))
        if draft:
            draft.forget_from(n_past)
        guessed = time.perf_counter()
        logits = target.read(batch, n_past)  # [1 + guesses, n_vocab]
        decoded = time.perf_counter()
        picked: list[int] = []
        for row, guess in zip_longest(logits, batch[1:]):
            picked.append(request.pick(row, [*prompt, *tokens, *picked]))
            if picked[-1] != guess:
                break
        accepted = len(picked) - 1
        draft_s = 0.0
        if draft:
            draft.read(batch, n_past)
            draft_s = guessed - began + time.perf_counter() - decoded
            for model in (target, draft):
                model.forget_from(n_past + 1 + accepted)
        end = next((n for n, token in enumerate(picked) if target.is_end(token)), accepted)
        picked = picked[: end + 1]
        tokens += picked
        last = picked[-1]
        rounds.append(
            RoundStats(
                n_tokens=len(picked),
                accepted=min(accepted, len(picked)),
                verified=len(batch) - 1,
                passes=1,
                draft_s=draft_s,
                pass_s=decoded - guessed,
                stall_s=0.0,
                wall_s=time.perf_counter() - began,
            )
        )
    return tokens, rounds


class _LlamaModel(Closeable):
    """A model and a context as in llama.cpp's own programs, with one text."""

    def __init__(self, path: Path, request: BaselineRequest, keeps_all: bool) -> None:
        if keeps_all:
            self._model = loading.load_resident(path, loading.NOWHERE, AbortFlag(), packed=True)
        else:
            self._model = loading.load_filled(path)
        self.vocabulary = GgufVocabulary(self._model)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = request.ctx_size, 1
        n_threads = loading.useful_threads(path.stat().st_size, request.n_threads)
        params.n_threads = params.n_threads_batch = n_threads
        with log.captured():
            self._context: Any = lib.llama_init_from_model(self._model.handle, params)
        if not self._context:
            self._model.close()
            raise UsageError(f"llama.cpp refuses a context of {params.n_ctx} tokens")
        self.most: int = lib.llama_n_batch(self._context)
        self._batch = RowBatch(self.most, 1)
        self._threads = spinning_threads() if n_threads > 1 else None

    def is_end(self, token: int) -> bool:
        return token in self.vocabulary.eog_tokens

    def close(self) -> None:
        if self._context:
            lib.llama_free(self._context)
            self._context = None
            self._model.close()

    def read(self, tokens: Sequence[int], position: int, is_prompt: bool = False) -> np.ndarray:
        """Append tokens to the text from `position` on; the logits after each of the last batch,
        float32 [n, n_vocab], of a prompt after the last one."""
        for begin in range(0, len(tokens), self.most):
            chunk = tokens[begin : begin + self.most]
            first, n_rows = position + begin, len(chunk)
            with_logits = range(n_rows - 1 if is_prompt else 0, n_rows)
            rows = Rows([*chunk], [*range(first, first + n_rows)], [[0]] * n_rows)
            fill(self._batch, rows, with_logits)
            with self._threads.computing(is_resident=True) if self._threads else nullcontext():
                code = lib.llama_decode(self._context, self._batch.raw)
            if code:
                raise EdgespecError(f"llama.cpp failed to compute (code {code})")
        shape = (len(with_logits), self._model.n_vocab)
        return np.ctypeslib.as_array(lib.llama_get_logits(self._context), shape).copy()

    def forget_from(self, position: int) -> None:
        """Drop the KV from this position on."""
        memory = lib.llama_get_memory(self._context)
        if not lib.llama_memory_seq_rm(memory, 0, position, -1):
            raise UsageError("this model's state cannot drop single tokens: it cannot speculate")
