"""Makes control tokens spelled in messages plain text, so that no user can forge a turn.

Templates trim, split and join their arguments, so every control token in a conversation's strings
gets a *seam* in its middle, a random string that no template and no user can guess. The rendered
text is split at the seams, and neither half reads as the token. Knows no template and no tokenizer.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from edgespec.chat.messages import CallArguments

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
"""Lower case for ASCII only, which preserves lengths; templates may change the case of messages."""
MAX_CHARACTERS = 64
"""Characters of a control token to search for; longer ones are found by their beginning."""


def new_seam() -> str:
    """A seam for one conversation: random digits, which no template changes, quotes or trims."""
    return f"{secrets.randbelow(10**24):024d}"


class ControlTexts:
    """The spellings of a model's control tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(token[:MAX_CHARACTERS] for token in tokens if len(token) > 1)
        self._lower = frozenset(token.translate(_LOWER) for token in self._tokens)
        self._lengths = sorted({len(token) for token in self._tokens}, reverse=True)
        first = "".join(re.escape(letter) for letter in sorted({word[0] for word in self._lower}))
        self._first = re.compile(f"[{first}]" if first else "(?!)")

    def seamed(self, value: Any, seam: str, kept: Collection[str] = ()) -> Any:
        """`value` with a seam behind the first character of every control token in its strings,
        except those in `kept`.

        A string that ends in the beginning of a control token gets a seam there, too, since the
        next string may complete it.
        """
        if isinstance(value, str):
            return self._seamed_text(value, seam, kept) if self._tokens else value
        if isinstance(value, Mapping):
            parts = {
                self.seamed(key, seam, kept): self.seamed(part, seam, kept)
                for key, part in value.items()
            }
            is_call = isinstance(value, CallArguments)
            return CallArguments(parts, self.seamed(str(value), seam, kept)) if is_call else parts
        if isinstance(value, list | tuple):
            return [self.seamed(part, seam, kept) for part in value]
        return value

    def pieces(self, rendered: str, seam: str) -> list[str]:
        """The rendered text without seams, split at those that lie inside a control token."""
        parts = rendered.split(seam)
        text = "".join(parts)
        cuts, place = [0], 0
        for part in parts[:-1]:
            place += len(part)
            if place and self._token_at(text, place - 1, self._tokens):
                cuts.append(place)
        return [text[begin:end] for begin, end in pairwise([*cuts, len(text)])]

    def _seamed_text(self, text: str, seam: str, kept: Collection[str]) -> str:
        cuts, lower = [0], text.rstrip().translate(_LOWER)
        for match in self._first.finditer(lower):
            begin = match.start()
            if token := self._token_at(lower, begin, self._lower):
                is_cut = text[begin : begin + len(token)] not in kept
            else:
                is_near_end = len(lower) - begin < self._lengths[0]
                is_cut = is_near_end and any(t.startswith(lower[begin:]) for t in self._lower)
            cuts += [begin + 1] * is_cut
        return seam.join(text[begin:end] for begin, end in pairwise([*cuts, len(text)]))

    def _token_at(self, text: str, begin: int, tokens: Collection[str]) -> str:
        """The longest of the tokens that begins there; empty if there is none."""
        spelled = (text[begin : begin + length] for length in self._lengths)
        return next((one for one in spelled if one in tokens), "")
