"""Texts and conversations to tokens, and tokens to texts, control tokens included.

Tokenizers take up to 125 bytes per byte of text (llama.cpp's, with blanks), so texts are encoded
one at a time, and those far longer than the context are refused before they are encoded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial

from edgespec.chat.prompts import ChatPrompts
from edgespec.errors import ContextOverflow
from edgespec.ports import Vocabulary
from edgespec.settings import arguments

MAX_PIECE_BYTES = 32
"""Most bytes per token on average, in all but very short texts; single tokens of blanks have up to
some hundreds."""
MIN_TOKENS = 64
"""Smaller contexts are treated like this one, because texts are cut within words."""


class Tokenizer:
    """Encodes and decodes texts of one model, from any thread."""

    def __init__(
        self, vocabulary: Vocabulary, n_ctx: int, use: AbstractContextManager[None]
    ) -> None:
        """Every use of the model is within `use`."""
        self._vocabulary = vocabulary
        self._n_ctx = n_ctx
        self._use = use
        self._turn = threading.Lock()

    def check_length(self, n_characters: int) -> None:
        """Raise ContextOverflow for a text of so many characters that it cannot fit."""
        longest = self._vocabulary.longest_piece_bytes
        if n_characters > min(longest, MAX_PIECE_BYTES) * max(self._n_ctx, MIN_TOKENS):
            n_tokens = max(self._n_ctx + 1, n_characters // longest)
            raise ContextOverflow(self._n_ctx, n_tokens, is_counted=False)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`: with `add_special` behind a BOS token if the model uses one, and
        without `parse_special` with control tokens that the text spells as text.

        Raises ContextOverflow for a text that is far longer than the context.
        """
        if not parse_special:
            bos = self.encode("") if add_special else []
            return bos + self._own_prompts.text_tokens(text)
        self.check_length(len(text))
        most, encode = max(self._n_ctx, MIN_TOKENS), self._vocabulary.encode
        with self._use, self._turn:
            # a text has at least as many tokens as its beginning, but for a few at the cut
            for share in (1, 2, 4, 8, 16):
                begin = text[: share * most]
                if begin != text and (n_tokens := len(encode(begin, add_special))) > 2 * most:
                    raise ContextOverflow(self._n_ctx, n_tokens, is_counted=False)
            return encode(text, add_special)

    def prompt(self, prompt: str | Sequence[int]) -> list[int]:
        """Tokens of a prompt, text or tokens already. Raises UsageError."""
        if not isinstance(prompt, str):
            return arguments.token_ids("the prompt", prompt)
        return self.encode(arguments.text("the prompt", prompt))

    def piece(self, token: int) -> bytes:
        """The bytes of a token, those of control tokens included. Raises UsageError for a number
        that is no token."""
        token = arguments.whole("the token", token)
        with self._use:
            return self._vocabulary.piece(token) or self._spelled.get(token, b"")

    def chat_prompts(self, model: str, template: str | None = None) -> ChatPrompts:
        """The prompts of conversations with the model of this name; `template` replaces its own."""
        return ChatPrompts(
            model,
            self._vocabulary.chat_format,
            partial(self.encode, add_special=False),
            template,
            self.check_length,
            bos=self.encode("")[:1],
        )

    @cached_property
    def _own_prompts(self) -> ChatPrompts:
        return self.chat_prompts("the model")

    @cached_property
    def _spelled(self) -> dict[int, bytes]:
        control = self._vocabulary.chat_format.control_tokens
        encoded = ((text, self.encode(text, False)) for text in control)
        return {ids[0]: text.encode() for text, ids in encoded if len(ids) == 1}
