"""Computes the size of a value when it is written or compared, counting shared parts each time.

A list that contains another list twice, which contains another one twice, is small in memory and
exponentially large when written. Knows values, but no templates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jinja2.utils import Namespace

MAX_PARTS = 1 << 20
"""Most distinct containers in a value; a conversation has a few per message."""


def nested_size(value: Any) -> int:
    """Number of elements and characters in `value`, counting parts as often as they occur.

    Raises RecursionError for a value that contains itself, and ValueError for more than MAX_PARTS
    parts.
    """
    if not isinstance(value, _CONTAINERS):
        return len(value) if isinstance(value, str) else 1
    sizes: dict[int, int] = {}
    open_parts: set[int] = set()
    path = [(value, _parts(value))]
    open_parts.add(id(value))
    totals = [1]
    while path:
        container, rest = path[-1]
        for part in rest:
            if not isinstance(part, _CONTAINERS):
                totals[-1] += len(part) if isinstance(part, str) else 1
            elif id(part) in sizes:
                totals[-1] += sizes[id(part)]
            else:
                if id(part) in open_parts:
                    raise RecursionError("a value is in itself")
                if len(sizes) + len(path) > MAX_PARTS:
                    raise ValueError(f"more than {MAX_PARTS:,} parts")
                open_parts.add(id(part))
                path.append((part, _parts(part)))
                totals.append(1)
                break
        else:
            path.pop()
            size = sizes[id(container)] = totals.pop()
            open_parts.discard(id(container))
            if totals:
                totals[-1] += size
    return size


_CONTAINERS = (list, tuple, set, frozenset, dict, Namespace)


def _parts(container: Any) -> Iterator[Any]:
    if isinstance(container, Namespace):
        container = container._Namespace__attrs
    if isinstance(container, dict):
        for key, value in container.items():
            yield key
            yield value
    else:
        yield from container
