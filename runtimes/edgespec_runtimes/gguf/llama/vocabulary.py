"""The tokenizer of a GGUF model, by llama.cpp. Knows no context and no weights."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from typing import NoReturn

import numpy as np

from edgespec.errors import UsageError
from edgespec.ports import Vocabulary, unknown_token
from edgespec.ports.language_model import ChatFormat
from edgespec_runtimes.gguf.file.chat_format import chat_format, special_tokens
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.llama.loading import Model

_CONTROL = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
"""Attributes of tokens that llama.cpp only parses in a text on request."""
_ADDED = lib.LLAMA_TOKEN_ATTR_USER_DEFINED
# asked for each of up to 262,144 tokens: these keep the GIL, which takes half of the time
_is_end = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int32)(
    ("llama_vocab_is_eog", lib._lib)
)
_kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32)(
    ("llama_vocab_get_attr", lib._lib)
)

PIECES_KEPT = 8_192
"""Pieces of tokens that are kept, at 300 bytes each."""


class GgufVocabulary(Vocabulary):
    """Converts between text and tokens with llama.cpp's tokenizer."""

    def __init__(self, model: Model, header: GgufFile | None = None) -> None:
        """`header` has special tokens and the chat format; of all texts a list would take 13 MiB,
        beside weights that are in memory already."""
        self._vocab = model.vocab
        self._users = model.users
        self.n_vocab = model.n_vocab
        is_end, kinds = self._all(_is_end, np.bool_), self._all(_kind, np.int16)
        self.eog_tokens = frozenset(np.flatnonzero(is_end).tolist())
        is_control = is_end | (kinds & _CONTROL != 0)
        special = {*np.flatnonzero(is_control | (kinds & _ADDED != 0)).tolist()}
        texts: dict[int, bytes] = {}
        self.longest_piece_bytes = 0
        if header is not None:
            wanted = special.union(special_tokens(header).values())
            texts, self.longest_piece_bytes = header.texts_of(wanted)
        shown = {token: texts[token].decode(errors="replace") for token in special & texts.keys()}
        self.chat_format = replace(
            chat_format(header, texts) if header is not None else ChatFormat(),
            control_tokens=frozenset(text for token, text in shown.items() if is_control[token]),
            added_tokens=frozenset(text for token, text in shown.items() if not is_control[token]),
        )

    def _all(self, ask: Callable[[int, int], int], kind: type) -> np.ndarray:
        """Answers of llama.cpp about each token, numbers of this kind, [n_vocab]."""
        address = ctypes.cast(self._vocab, ctypes.c_void_p).value or 0
        answers = map(ask, repeat(address), range(self.n_vocab))
        return np.fromiter(answers, kind, self.n_vocab)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        raw = text.encode()
        room = len(raw) + 16
        while True:
            tokens = (ctypes.c_int32 * room)()
            with self._users:
                n = lib.llama_tokenize(self._vocab, raw, len(raw), tokens, room, add_special, True)
            if n >= 0:
                return list(tokens[:n])
            room = -n

    @functools.lru_cache(maxsize=PIECES_KEPT)  # noqa: B019 - the vocabulary lives as long as its model
    def piece(self, token: int) -> bytes:
        if not 0 <= token < self.n_vocab:  # llama.cpp would crash
            raise unknown_token(token, self.n_vocab)
        room = 64
        while True:
            text = ctypes.create_string_buffer(room)
            with self._users:
                n = lib.llama_token_to_piece(self._vocab, token, text, room, 0, False)
            if n >= 0:
                return text.raw[:n]
            room = -n


class NoTexts(Vocabulary):
    """Token ids without texts, of a model without a tokenizer, which ends the process if it is
    asked.

    A draft guesses ids, which the target's vocabulary turns into text: llama.cpp's tables of a
    second vocabulary would take 38 MiB for 151,936 tokens.
    """

    eog_tokens: frozenset[int] = frozenset()
    longest_piece_bytes = 0

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab

    def encode(self, text: str, add_special: bool = True) -> NoReturn:
        raise UsageError("a draft has no tokenizer: ask the target for texts of tokens")

    def piece(self, token: int) -> NoReturn:
        self.encode("")
