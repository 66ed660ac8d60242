"""What one process is asked to measure and what it answers, and both as JSON.

Values only: who starts the process, and how it measures, is elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from edgespec.values import RoundCost


@dataclass(frozen=True, slots=True)
class Decode:
    """Continue a prompt greedily in one mode."""

    mode: str
    model: Path
    draft: Path | None
    prompt: str
    n_tokens: int
    ctx_size: int
    n_threads: int
    budget_bytes: int | None
    """Of the process; None is what is free."""


@dataclass(frozen=True, slots=True)
class ReadRaw:
    """Read a file past the page cache, one read after the other, from its start and over again."""

    path: Path
    nbytes: int
    """Most that is timed."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Plan the models' memory without reading weights."""

    model: Path
    draft: Path | None
    ctx_size: int
    n_threads: int
    budget_bytes: int | None


@dataclass(frozen=True, slots=True)
class Decoded:
    """One run of one mode. Seconds are wall-clock."""

    tokens: tuple[int, ...]
    text_sha256: str
    n_prompt_tokens: int
    load_s: float
    prompt_s: float
    decode_s: float
    rounds: tuple[RoundCost, ...]
    bytes_read: int
    """While decoding."""
    peak_bytes: int
    decoding_since: float
    """On the machine's monotonic clock."""
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        return len(self.tokens) / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def passes(self) -> int:
        return sum(cost.passes for cost in self.rounds)


@dataclass(frozen=True, slots=True)
class RawRead:
    """A plain read loop."""

    nbytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What the models would take."""

    resident_bytes: int
    """The whole process with the target alone, all its weights in memory."""
    pass_bytes: int
    """What a pass reads under the budget; 0 where the target fits."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a run came to nothing."""

    message: str
    type: str = "EdgespecError"
    smallest_bytes: int | None = None
    """A budget that would do."""


Job = Decode | ReadRaw | Survey
Answer = Decoded | RawRead | Surveyed | Failed

_KINDS: dict[str, type] = {
    kind.__name__: kind for kind in (Decode, ReadRaw, Survey, Decoded, RawRead, Surveyed, Failed)
}


def to_json(value: Job | Answer) -> bytes:
    """The value and its kind, as one line."""
    body = TypeAdapter[Any](type(value)).dump_python(value, mode="json")
    return json.dumps({"kind": type(value).__name__, "body": body}).encode()


def from_json(line: bytes) -> Job | Answer:
    """The value that `to_json` wrote. Raises ValueError for anything else."""
    content = json.loads(line)
    if not isinstance(content, dict) or content.get("kind") not in _KINDS:
        raise ValueError("neither a job nor an answer")
    value: Job | Answer = TypeAdapter[Any](_KINDS[content["kind"]]).validate_python(content["body"])
    return value
