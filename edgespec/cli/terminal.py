"""Text that a terminal may be given: without the characters with which it takes orders.

Names in a model's file and what a model writes come from anywhere, and escape sequences move the
cursor, rename the window and write to the clipboard.
"""

from __future__ import annotations

import re
from typing import TextIO

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but newline and tab, C1 among them: some terminals know U+009B, too."""


def printable(text: str) -> str:
    """`text` without control characters; newlines and tabs stay."""
    return _CONTROL.sub("", text)


def printable_on(stream: TextIO, text: str) -> str:
    """`text` as it is for a file or pipe, `printable` for a terminal."""
    return printable(text) if stream.isatty() else text
