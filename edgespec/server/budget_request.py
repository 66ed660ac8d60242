"""The body of `POST /v1/budget`."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.completions.requests import RequestError

FIELD = "memory_budget"


def budget_of(content: object) -> int | str:
    """The budget in decoded JSON, as it was written. Raises RequestError."""
    if not isinstance(content, Mapping) or content.keys() != {FIELD}:
        raise RequestError(f'the body must be an object like {{"{FIELD}": "2GiB"}}')
    size = content[FIELD]
    if isinstance(size, float) and size.is_integer():  # an integer in JSON
        return int(size)
    if not isinstance(size, int | str) or isinstance(size, bool):
        raise RequestError(f"{FIELD}: it must be a number of bytes, or a size like 2GiB", FIELD)
    return size
