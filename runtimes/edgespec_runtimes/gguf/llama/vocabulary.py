"""The tokenizer of a GGUF model, by llama.cpp. Knows no context and no weights."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from dataclasses import replace

from edgespec.ports import check_token
from edgespec.ports.chat_format import ChatFormat
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.llama.library_templates import LlamaTemplates
from edgespec_runtimes.gguf.llama.loading import Model

_CONTROL = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
"""Attributes of tokens that llama.cpp only parses in a text on request."""

PIECES_KEPT = 8_192
"""Pieces of tokens that are kept, at 300 bytes each."""


class GgufVocabulary:
    """Converts between text and tokens with llama.cpp's tokenizer."""

    def __init__(
        self, model: Model, tokens: Iterable[bytes], chat_format: ChatFormat | None = None
    ) -> None:
        """`tokens` are texts in the order of their ids, taken one by one: weights are in memory
        already, and a list of 152,000 would take 13 MiB beside them."""
        self._vocab = model.vocab
        self._users = model.users
        self.n_vocab = model.n_vocab
        self.longest_piece_bytes = 0
        self.eog_tokens = frozenset(
            token for token in range(self.n_vocab) if lib.llama_vocab_is_eog(self._vocab, token)
        )
        control, added = set(), set()
        for token, text in enumerate(tokens):
            self.longest_piece_bytes = max(self.longest_piece_bytes, len(text))
            if token >= self.n_vocab:
                continue
            kind = lib.llama_vocab_get_attr(self._vocab, token)
            if kind & _CONTROL or token in self.eog_tokens:
                control.add(text.decode(errors="replace"))
            elif kind & lib.LLAMA_TOKEN_ATTR_USER_DEFINED:
                added.add(text.decode(errors="replace"))
        self.chat_format = replace(
            chat_format or ChatFormat(),
            control_tokens=frozenset(control),
            added_tokens=frozenset(added),
            named=LlamaTemplates(),
        )

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        raw = text.encode()
        room = len(raw) + 16
        while True:
            tokens = (ctypes.c_int32 * room)()
            with self._users.use():
                n = lib.llama_tokenize(self._vocab, raw, len(raw), tokens, room, add_special, True)
            if n >= 0:
                return list(tokens[:n])
            room = -n

    @functools.lru_cache(maxsize=PIECES_KEPT)  # noqa: B019 - the vocabulary lives as long as its model
    def piece(self, token: int) -> bytes:
        check_token(token, self.n_vocab)  # llama.cpp would crash
        room = 64
        while True:
            text = ctypes.create_string_buffer(room)
            with self._users.use():
                n = lib.llama_token_to_piece(self._vocab, token, text, room, 0, False)
            if n >= 0:
                return text.raw[:n]
            room = -n
