"""Sizes as people write and read them."""

from __future__ import annotations

import re

from edgespec.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:(%)|([kmgt]?)(?:i?b)?)", re.IGNORECASE | re.ASCII)
_EXPONENT = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def parse_size(value: str | int, total_bytes: int | None = None, named: str | None = None) -> int:
    """Bytes of `6GiB`, `512M`, `1.5G`, `75%` or a number; every unit is binary, as in llama.cpp.

    A percentage is one of `total_bytes`. Raises UsageError for anything else, zero included; the
    error calls the value `named`, such as `--size 1X`.
    """
    match = _SIZE.fullmatch(str(value).strip())
    said = f"{named}: {value!r}" if named else repr(value)
    if match is None or isinstance(value, bool):
        raise UsageError(f"{said} is not a size: write it like 512M, 6GiB, 1.5G or 75%")
    number, percent, unit = match.groups()
    if percent:
        if total_bytes is None:
            raise UsageError(f"{said}: a percentage has no meaning here, write a size like 6GiB")
        size = float(number) / 100 * total_bytes
    else:
        size = float(number) * 1024 ** _EXPONENT[unit.lower()]
    if not 1 <= size < 1 << 63:
        raise UsageError(f"{said} is not a size that memory or a file can have")
    return int(size)


def format_size(nbytes: float) -> str:
    """`1.5 GiB`: three significant digits are enough for people."""
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:.{1 if nbytes < 100 * unit else 0}f} {name}"
    return f"{nbytes:.0f} bytes"
