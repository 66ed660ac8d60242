"""Token ids without texts, which a model gets instead of its file's tokenizer.

A draft guesses ids, which the target's vocabulary turns into text: llama.cpp's tables of a second
vocabulary would take 38 MiB for 151,936 tokens, and read nothing that is used.
"""

from __future__ import annotations

from typing import Any, NoReturn

from edgespec.errors import UsageError
from edgespec.ports import Vocabulary
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.llama.bindings import lib

_INTEGER, _TEXT = 0, 3
"""`enum llama_model_kv_override_type`."""


def leave_out_texts(header: GgufFile, params: Any) -> Any:
    """Have llama.cpp read no tokenizer, if the file says how many tokens there are; returns an
    object to keep until the model is loaded."""
    overrides: Any = (lib.llama_model_kv_override * 3)()  # the last one ends the list
    if header.n_vocab:
        tokenizer, size = overrides[0], overrides[1]
        tokenizer.tag, tokenizer.key = _TEXT, b"tokenizer.ggml.model"
        tokenizer.value.val_str = b"no_vocab"
        size.tag, size.key = _INTEGER, header.key("vocab_size").encode()
        size.value.val_i64 = header.n_vocab
        params.kv_overrides = overrides
    return overrides


class NoTexts(Vocabulary):
    """The vocabulary of a model without a tokenizer: llama.cpp would end the process."""

    eog_tokens: frozenset[int] = frozenset()
    longest_piece_bytes = 0

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab

    def encode(self, text: str, add_special: bool = True) -> NoReturn:
        raise _no_texts()

    def piece(self, token: int) -> NoReturn:
        raise _no_texts()


def _no_texts() -> UsageError:
    return UsageError("a draft is loaded without its tokenizer: ask the target for texts of tokens")
