"""Parses and formats sizes, rates and durations."""

from __future__ import annotations

import re

from edgespec.errors import UsageError

_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(%|i?b|b?/s|)", re.IGNORECASE | re.ASCII)
_AUTO = re.compile(r"auto(?::\s*([^-]+)-([^-]+))?", re.IGNORECASE)
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def _parsed(value: str | int, base: int) -> tuple[float, str]:
    """The number with its unit, and what follows that; zero for anything else."""
    match = None if isinstance(value, bool | float) else _NUMBER.fullmatch(str(value).strip())
    if match is None or (match[2] and match[3] == "%"):
        return 0.0, ""
    return float(match[1]) * base ** " kmgt".index(match[2].lower() or " "), match[3].lower()


def parse_size(value: str | int, total_bytes: int | None = None) -> int:
    """Parse a size: `6GiB`, `512M`, `1.5G`, `75%` or a number; units are binary, as in llama.cpp.

    Percentages refer to `total_bytes`. Raises UsageError for anything else, including zero.
    """
    size, ending = _parsed(value, 1024)
    if ending == "%":
        if total_bytes is None:
            raise UsageError(f"{value!r}: a percentage has no meaning here, write a size like 6GiB")
        size *= total_bytes / 100
    if not 1 <= size < 1 << 63 or ending.endswith("/s"):
        raise UsageError(f"{value!r} is not a size: write it like 512M, 6GiB, 1.5G or 75%")
    return int(size)


def parse_rate(value: str | int) -> int:
    """Parse a rate in bytes per second: `300M`, `1.5G` or a number; units are decimal.

    Raises UsageError for anything else.
    """
    rate, ending = _parsed(value, 1000)
    if not 1 <= rate < 1 << 63 or ending not in ("", "b", "/s", "b/s"):
        raise UsageError("write bytes a second like 300M or 1.5G")
    return int(rate)


def auto_bounds(budget: str | int) -> tuple[str, str] | None:
    """Floor and ceiling of a budget that follows the free memory, `auto:1GiB-4GiB`; both are empty
    for `auto`, None for a budget that is fixed."""
    match = _AUTO.fullmatch(str(budget).strip())
    return match and ((match[1] or "").strip(), (match[2] or "").strip())


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
