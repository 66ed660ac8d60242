"""The body of `POST /v1/budget`, and how far it may go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pydantic import StrictInt, StrictStr

from edgespec.completions.protocols.request_parts import ParsedRequest, RequestError
from edgespec.memory import process
from edgespec.settings.units import auto_bounds, format_size, parse_size


class BudgetRequest(ParsedRequest):
    """A request for another memory budget."""

    memory_budget: StrictInt | StrictStr
    """A number of bytes, a size such as 2GiB, or auto."""


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
        size = BudgetRequest.parse(content).memory_budget
        if size == "auto":
            return self.auto
        n_bytes = parse_size(size, process.total_bytes())
        if n_bytes > self.most_bytes:
            raise RequestError(
                f"memory_budget: {format_size(n_bytes)} is above the server's setting max-budget, "
                f"{format_size(self.most_bytes)}: raise it, or give less",
                "memory_budget",
                "budget_too_large",
            )
        return n_bytes
