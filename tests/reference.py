"""llama.cpp's own token-by-token decoding of a file: what edgespec's text is held against.

Written over the bindings, without edgespec's runtime: mmap, no repacking, one token a decode.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.concurrency.owning import Closeable
from edgespec_runtimes.gguf.llama.bindings import lib


@lib.llama_log_callback
def _silence(level: int, text: bytes, user_data: Any) -> None:
    pass


def quantise(source: Path, out: Path, name: str) -> None:
    """Write a model in another quantisation, by llama.cpp's own tool."""
    params = lib.llama_model_quantize_default_params()
    mixed = "ALL_F32" if name == "F32" else f"MOSTLY_{name}"
    params.ftype, params.allow_requantize = getattr(lib, f"LLAMA_FTYPE_{mixed}"), True
    params.nthread = 1
    files = (str(path).encode() for path in (source, out))
    assert lib.llama_model_quantize(*files, ctypes.byref(params)) == 0


@dataclass(frozen=True)
class Reference:
    """Greedy continuation of one prompt."""

    tokens: list[int]
    leaders: list[np.ndarray]
    """At each token the ids of the best and the second-best one."""
    leading: list[np.ndarray]
    """Their logits."""

    def margin(self, step: int) -> float:
        """Lead of the best logit."""
        best, second = self.leading[step]
        return float(best - second)


class LlamaCpp(Closeable):
    """A model as llama.cpp maps it, or in memory and packed for the CPU."""

    def __init__(self, path: Path, n_ctx: int = 512, packed: bool = False) -> None:
        lib.llama_log_set(_silence, None)
        model_params = lib.llama_model_default_params()
        model_params.load_mode, model_params.use_extra_bufts = int(not packed), packed
        model_params.n_gpu_layers = 0
        self._model = lib.llama_model_load_from_file(str(path).encode(), model_params)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, 1, 1
        params.flash_attn_type = 1
        self._context = lib.llama_init_from_model(self._model, params)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.n_vocab = lib.llama_vocab_n_tokens(self._vocab)

    def close(self) -> None:
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def is_end(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    def start(self) -> None:
        """Forget everything decoded."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after the last of `tokens`, float32 [n_vocab], decoded as one batch."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        code = lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(tokens)))
        assert code == 0, f"llama_decode returned {code}"
        return np.ctypeslib.as_array(lib.llama_get_logits(self._context), (self.n_vocab,)).copy()

    def decode_all(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after each of `tokens`, float32 [tokens, n_vocab], decoded as one batch."""
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        code = lib.llama_decode(self._context, batch)
        lib.llama_batch_free(batch)
        assert code == 0, f"llama_decode returned {code}"
        shape = len(tokens), self.n_vocab
        return np.ctypeslib.as_array(lib.llama_get_logits(self._context), shape).copy()

    def greedy(self, prompt: Sequence[int], n_tokens: int) -> Reference:
        """`n_tokens` tokens, every one decoded alone, prompt included."""
        self.start()
        for token in prompt:
            logits = self.decode([token])
        tokens: list[int] = []
        leaders: list[np.ndarray] = []
        leading: list[np.ndarray] = []
        while len(tokens) < n_tokens:
            pair = np.argsort(-logits, kind="stable")[:2]
            tokens.append(int(pair[0]))
            leaders.append(pair)
            leading.append(logits[pair])
            if self.is_end(tokens[-1]):
                break
            logits = self.decode(tokens[-1:])
        return Reference(tokens, leaders, leading)
