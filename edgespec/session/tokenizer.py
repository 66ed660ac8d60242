"""Texts and conversations to tokens, and tokens to texts, control tokens included."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial

from edgespec.chat.prompts import ChatPrompts
from edgespec.ports import Vocabulary
from edgespec.session.encoding import Encoder


def chat_prompts(
    name: str, vocabulary: Vocabulary, encoder: Encoder, source: str | None = None
) -> ChatPrompts:
    """The prompts of conversations with the model `name`; `source` replaces its chat template."""
    return ChatPrompts(
        name,
        vocabulary.chat_format,
        partial(encoder.encode, add_special=False),
        source,
        vocabulary.piece,
        encoder.too_long,
        bos=encoder.encode("")[:1],
    )


class Tokenizer:
    """Encodes and decodes texts of one model, from any thread."""

    def __init__(
        self,
        encoder: Encoder,
        prompts: ChatPrompts,
        piece: Callable[[int], bytes],
        control_tokens: Iterable[str],
    ) -> None:
        """`piece` has the bytes of a token, none for most of `control_tokens`."""
        self._encoder = encoder
        self._prompts = prompts
        self._bytes_of = piece
        self._control_tokens = control_tokens

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of `text`: with `add_special` behind a BOS token if the model uses one, and
        without `parse_special` with control tokens that the text spells as text.

        Raises UsageError for a text that is far longer than the context.
        """
        if parse_special:
            return self._encoder.encode(text, add_special)
        bos = self._encoder.encode("") if add_special else []
        return bos + self._prompts.text_tokens(text)

    def piece(self, token: int) -> bytes:
        """The bytes of a token, those of control tokens included. Raises UsageError for a number
        that is no token."""
        return self._bytes_of(token) or self._spelled.get(token, b"")

    @cached_property
    def _spelled(self) -> dict[int, bytes]:
        encoded = ((text, self._encoder.encode(text, False)) for text in self._control_tokens)
        return {ids[0]: text.encode() for text, ids in encoded if len(ids) == 1}
