"""Token ids without texts, which a model gets instead of its file's tokenizer.

A draft guesses ids, which the target's vocabulary turns into text: llama.cpp's tables of a second
vocabulary would take 38 MiB for 151,936 tokens, and read nothing that is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from edgespec.errors import UsageError
from edgespec.ports import Vocabulary
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.llama.bindings import lib

_INTEGER, _TEXT = 0, 3
"""`enum llama_model_kv_override_type`."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Overrides of a file's metadata, so that llama.cpp reads no tokenizer."""

    size_key: str
    """Metadata key of the vocabulary's size."""
    n_vocab: int

    @classmethod
    def of(cls, header: GgufFile) -> TokenIds | None:
        """The ids of a model; None for a file that does not say how many tokens there are."""
        return cls(header.key("vocab_size"), header.n_vocab) if header.n_vocab else None

    def override(self, params: Any) -> Any:
        """Set them in `params`; returns an object to keep until the model is loaded."""
        overrides: Any = (lib.llama_model_kv_override * 3)()  # the last one ends the list
        tokenizer, size = overrides[0], overrides[1]
        tokenizer.tag, tokenizer.key = _TEXT, b"tokenizer.ggml.model"
        tokenizer.value.val_str = b"no_vocab"
        size.tag, size.key = _INTEGER, self.size_key.encode()
        size.value.val_i64 = self.n_vocab
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
