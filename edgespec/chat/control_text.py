"""Makes control tokens spelled in messages plain text, so that no user can forge a turn.

Templates trim, split and join their arguments, so every control token in a conversation's strings
gets a *seam* in its middle, a random string that no template and no user can guess. The rendered
text is split at the seams, and neither half reads as the token. Knows no template and no tokenizer.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from edgespec.chat.spliced import CallArguments, changed

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
        self._lower = _Spellings(token.translate(_LOWER) for token in self._tokens)
        self._exact = _Spellings(self._tokens)

    def seamed(self, value: Any, seam: str, kept: Collection[str] = ()) -> Any:
        """`value` with a seam inside every control token in its strings, except those in `kept`.

        A string that ends in the beginning of a control token gets a seam there, too, since the
        next string may complete it.
        """
        if isinstance(value, str):
            return self._seamed_text(value, seam, kept) if self._tokens else value
        if isinstance(value, CallArguments):
            return changed(value, lambda part: self.seamed(part, seam, kept))
        if isinstance(value, Mapping):
            return {
                self.seamed(key, seam, kept): self.seamed(part, seam, kept)
                for key, part in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.seamed(part, seam, kept) for part in value]
        return value

    def pieces(self, rendered: str, seam: str) -> list[str]:
        """The rendered text without seams, split at those that lie inside a control token."""
        parts = rendered.split(seam)
        if len(parts) == 1:
            return parts
        text = "".join(parts)
        spans = iter([*self._exact.spans(text), (len(text), len(text))])
        begin, end = next(spans)
        cuts, place = [0], 0
        for part in parts[:-1]:
            place += len(part)
            while end <= place < len(text):
                begin, end = next(spans)
            if begin < place < end:
                cuts.append(place)
        return [text[begin:end] for begin, end in pairwise([*cuts, len(text)])]

    def _seamed_text(self, text: str, seam: str, kept: Collection[str]) -> str:
        cuts = [0]
        for begin, end in self._lower.spans(text.rstrip().translate(_LOWER), unfinished=True):
            if text[begin:end] not in kept:
                cuts.append(begin + 1)
        return seam.join(text[begin:end] for begin, end in pairwise([*cuts, len(text)]))


class _Spellings:
    """Finds words in a text, in time proportional to the length of the text."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(words)
        self._beginnings = {word[:n] for word in self._words for n in range(1, len(word))}
        first = "".join(re.escape(letter) for letter in sorted({word[0] for word in self._words}))
        self._first = re.compile(f"[{first}]" if first else "(?!)")

    def spans(self, text: str, unfinished: bool = False) -> Iterator[tuple[int, int]]:
        """Begin and end of the longest word at each position, overlapping ones, too; `unfinished`
        includes the beginning of a word at the end of the text."""
        for match in self._first.finditer(text):
            begin, end, n = match.start(), 0, 1
            while True:
                head = text[begin : begin + n]
                if head in self._words:
                    end = begin + n
                if head not in self._beginnings:
                    break
                if begin + n >= len(text):
                    end = len(text) if unfinished else end
                    break
                n += 1
            if end:
                yield begin, end
