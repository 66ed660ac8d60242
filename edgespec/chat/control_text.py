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
from typing import Any

from edgespec.chat.messages import CallArguments

MAX_CHARACTERS = 64
"""Characters of a control token to search for; longer ones are found by their beginning."""


def new_seam() -> str:
    """A seam for one conversation: random digits, which no template changes, quotes or trims."""
    return f"{secrets.randbelow(10**24):024d}"


class ControlTexts:
    """The spellings of a model's control tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(token[:MAX_CHARACTERS] for token in tokens if len(token) > 1)
        self._longest = max(map(len, self._tokens), default=0)
        # the longest that begins at a place, also if it overlaps with another one
        spelled = "|".join(map(re.escape, sorted(self._tokens, key=len, reverse=True)))
        first = "".join(map(re.escape, sorted({token[0] for token in self._tokens})))
        form = f"(?=[{first}])(?=({spelled}))" if first else "(?!)"
        self._exact, self._any_case = re.compile(form), re.compile(form, re.IGNORECASE)

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
            if place and self._exact.match(text, place - 1):
                cuts.append(place)
        return [text[begin:end] for begin, end in pairwise([*cuts, len(text)])]

    def _seamed_text(self, text: str, seam: str, kept: Collection[str]) -> str:
        end = len(text.rstrip())
        cuts = {m.start() + 1 for m in self._any_case.finditer(text) if m[1] not in kept}
        for begin in range(max(0, end - self._longest + 1), end):
            rest = text[begin:end].lower()
            if any(t.lower().startswith(rest) and len(t) > len(rest) for t in self._tokens):
                cuts.add(begin + 1)
        return seam.join(text[a:b] for a, b in pairwise([0, *sorted(cuts), len(text)]))
