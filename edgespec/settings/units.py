"""Parses and formats sizes, rates and durations."""

from __future__ import annotations

import re

from edgespec.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:(%)|([kmgt]?)(?:i?b)?)", re.IGNORECASE | re.ASCII)
_EXPONENT = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


_AUTO = re.compile(r"auto(?::\s*([^-]+)-([^-]+))?", re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(?:b(?:/s)?)?", re.IGNORECASE | re.ASCII)
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def parse_size(value: str | int, total_bytes: int | None = None, named: str | None = None) -> int:
    """Parse a size: `6GiB`, `512M`, `1.5G`, `75%` or a number; units are binary, as in llama.cpp.

    Percentages refer to `total_bytes`. Raises UsageError for anything else, including zero; the
    message calls the value `named`, such as `--size 1X`.
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


def auto_bounds(budget: str | int) -> tuple[str, str] | None:
    """Floor and ceiling of a budget that follows the free memory, `auto:1GiB-4GiB`; both are empty
    for `auto`, None for a budget that is fixed."""
    match = _AUTO.fullmatch(str(budget).strip())
    if match is None:
        return None
    return (match[1] or "").strip(), (match[2] or "").strip()


def parse_rate(value: str | int, named: str) -> int:
    """Parse a rate in bytes per second: `300M`, `1.5G` or a number; units are decimal.

    Raises UsageError about what is `named`.
    """
    match = _RATE.fullmatch(str(value).strip())
    rate = int(float(match[1]) * _DECIMAL[match[2].lower()]) if match else 0
    if rate < 1 or isinstance(value, bool):
        raise UsageError(f"{named}: write bytes a second like 300M or 1.5G")
    return rate


def format_rate(bytes_per_s: float) -> str:
    """A rate in decimal units: `300 MB/s`."""
    return f"{bytes_per_s / 1e6:,.{0 if bytes_per_s >= 1e8 else 1}f} MB/s"


def format_duration(seconds: float) -> str:
    """A duration: `40 s`, `12 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def format_size(nbytes: float) -> str:
    """A size with three significant digits: `1.5 GiB`."""
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:.{1 if nbytes < 100 * unit else 0}f} {name}"
    return f"{nbytes:.0f} bytes"
