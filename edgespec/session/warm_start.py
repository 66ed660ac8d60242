"""A mixture's use of its experts, which is kept for the next run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgespec.files import cache_folder
from edgespec.files.json_file import JsonFile, pair_digest
from edgespec.ports import LanguageModel

MAX_FILES = 32
SHARES = "shares"
"""Key of the share of tokens that chose each expert: one hexadecimal byte per expert, by layer."""


def warm_start(target: LanguageModel, close: Callable[[], None]) -> Callable[[], None]:
    """Give a mixture its saved statistics; returns a function that saves them and calls `close`."""
    file = JsonFile(cache_folder.experts(), pair_digest(target.info), MAX_FILES)
    target.expect_experts(_shares(file.read()))

    def keep_and_close() -> None:
        try:
            if shares := target.expert_shares():
                file.write({SHARES: [layer.hex() for layer in shares]})
        finally:
            close()

    return keep_and_close


def _shares(content: Any) -> list[bytes]:
    """The shares in a file's content; empty if it is missing or of another form."""
    try:
        return [bytes.fromhex(layer) for layer in content[SHARES]]
    except (ValueError, TypeError, KeyError):
        return []
