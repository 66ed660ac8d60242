"""The body of `POST /v1/budget`, and how far it may go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from edgespec.completions.protocols.request_parts import RequestError
from edgespec.memory import process
from edgespec.settings.units import auto_bounds, format_size, parse_size

FIELD = "memory_budget"


@dataclass(frozen=True, slots=True)
class BudgetLimit:
    """The largest budget that clients may give a server."""

    most_bytes: int
    auto: str
    """The budget that follows the free memory, and that `auto` stands for."""

    @classmethod
    def of(cls, budget: int | str) -> Self:
        """The limit of a server that is started with a budget, on this machine."""
        total, bounds = process.total_bytes(), auto_bounds(budget)
        if bounds is None:
            most = min(parse_size(budget, total), total)
            return cls(most, f"auto:1-{most}")
        most = parse_size(bounds[1], total) if bounds[1] else process.resolve_budget(budget)
        return cls(min(most, total), str(budget))

    def budget_of(self, content: object) -> int | str:
        """The budget in decoded JSON. Raises RequestError and UsageError."""
        if not isinstance(content, Mapping) or content.keys() != {FIELD}:
            raise RequestError(f'the body must be an object like {{"{FIELD}": "2GiB"}}')
        size = content[FIELD]
        if size == "auto":
            return self.auto
        if isinstance(size, float) and size.is_integer():  # an integer in JSON
            size = int(size)
        if not isinstance(size, int | str) or isinstance(size, bool):
            raise RequestError(
                f"{FIELD}: it must be a number of bytes, a size like 2GiB, or auto", FIELD
            )
        n_bytes = parse_size(size, process.total_bytes())
        if n_bytes > self.most_bytes:
            raise RequestError(
                f"{FIELD}: {format_size(n_bytes)} is more than the {format_size(self.most_bytes)} "
                "that this server may be given: raise its setting max-budget, or give more",
                FIELD,
                "budget_too_large",
            )
        return n_bytes
