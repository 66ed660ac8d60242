"""Jobs for processes of their own, and their answers, as JSON.

It knows how a value of a known kind is written and read; what the kinds mean is elsewhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from edgespec import errors
from edgespec.errors import BudgetError, EdgespecError


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a run came to nothing: an answer to any job."""

    message: str
    type: str = "EdgespecError"
    smallest_bytes: int | None = None
    """A budget that would do."""

    @property
    def error(self) -> EdgespecError:
        """The error to raise in the process that wants an answer."""
        if self.type == BudgetError.__name__:
            return BudgetError(self.message, self.smallest_bytes)
        kind: type[EdgespecError] = getattr(errors, self.type, EdgespecError)
        return kind(self.message)


class Messages:
    """Values of these kinds, which are dataclasses with names of their own."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}

    def to_json(self, value: Any) -> bytes:
        """The value and its kind, as one line."""
        body = TypeAdapter[Any](type(value)).dump_python(value, mode="json")
        return json.dumps({"kind": type(value).__name__, "body": body}).encode()

    def from_json(self, line: bytes) -> Any:
        """The value that `to_json` wrote. Raises ValueError for anything else."""
        content = json.loads(line)
        if not isinstance(content, dict) or content.get("kind") not in self._kinds:
            raise ValueError("neither a job nor an answer")
        return TypeAdapter[Any](self._kinds[content["kind"]]).validate_python(content["body"])


def answer_one(messages: Messages, answer: Callable[[Any], Any]) -> int:
    """The whole of a process: a job from stdin, its answer to stdout. A failure is an answer."""
    try:
        answered = answer(messages.from_json(sys.stdin.buffer.read()))
    except (EdgespecError, OSError, MemoryError) as error:
        smallest = error.smallest_bytes if isinstance(error, BudgetError) else None
        answered = Failed(str(error), type(error).__name__, smallest)
    sys.stdout.buffer.write(messages.to_json(answered))
    return 0
