"""Turns settings as they are written into values: budgets, biases.

Values that depend on the machine stay text.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic_core import PydanticCustomError

from edgespec.errors import UsageError
from edgespec.settings.units import auto_bounds, parse_rate, parse_size

SELF = "self"
"""Name of a draft that is made from the target; a file of this name is written ./self."""
OWN_DRAFT = Path("<self>")
"""Stands for it until it is made or found in the cache."""
MAX_PORT = 65535
MAX_BIAS = 10_000.0
"""Largest bias of a logit, far more than logits differ by; one below -MAX_BIAS forbids a token."""
MAX_TEXTS = 64
"""Texts of one pass at most: what a pass costs besides reading grows with them."""
MIN_BUDGET_BYTES = 1 << 20
"""Smallest budget that text may give without a unit; less is taken for a missing unit."""
_BIAS = re.compile(r"(\d+)([+-](?:\d+(?:\.\d*)?|\.\d+|inf))", re.ASCII)


def budget(value: object) -> object:
    """The bytes of a budget. `auto` and percentages stay: what they mean depends on the machine and
    the moment."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if bounds := auto_bounds(text):
        floor, ceiling = (_checked_size(bound) if bound else 0 for bound in bounds)
        if floor > ceiling and bounds[0].endswith("%") == bounds[1].endswith("%"):
            raise UsageError("the smaller size comes first, as in auto:1GiB-4GiB")
        return text
    n_bytes = _checked_size(text if isinstance(value, str) else value)
    return text if text.endswith("%") else n_bytes


def _checked_size(size: str | int) -> int:
    """Bytes of a size, and for a percentage those of a large memory. Raises UsageError."""
    n_bytes = parse_size(size, whole := 1 << 40)
    if str(size).endswith("%") and n_bytes > whole:
        raise UsageError("at most 100% of the memory can be used")
    if isinstance(size, str) and not size.strip("0123456789.") and n_bytes < MIN_BUDGET_BYTES:
        unit = "GiB" if n_bytes < 128 else "MiB"
        raise UsageError(f"{size} alone means bytes; did you mean {size}{unit}?")
    return n_bytes


def disk_size(value: object) -> object:
    """The bytes of a size on disk, 0 for none."""
    if not isinstance(value, str | int) or isinstance(value, bool) or str(value).strip() == "0":
        return value
    return parse_size(value)


def rate(value: object) -> object:
    """Bytes per second."""
    return parse_rate(value) if isinstance(value, str | int) else value


def biases(value: object) -> object:
    """llama.cpp's `TOKEN_ID+BIAS` and `TOKEN_ID-BIAS`, one or a list of them, as a mapping."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    found = [_BIAS.fullmatch(str(text).strip()) for text in value]
    if None in found:
        raise PydanticCustomError(
            "bias", "write a token's id and its bias like 15043+1.5, or 15043-inf to forbid it"
        )
    return {int(match[1]): float(match[2]) for match in found if match}


def draft_named(value: object) -> object:
    """A draft as settings name it, with `OWN_DRAFT` for "self"."""
    return OWN_DRAFT if value == SELF else value
