"""What tuning measures: jobs for processes of their own, and their answers.

Values only: who starts a process, and how it measures, is elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import PlainSerializer
from pydantic_core import to_jsonable_python

from edgespec.bench.messages import Failed, Messages
from edgespec.bench.other_work import TOO_MUCH
from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MemoryPlan
from edgespec.values import RoundCost

Load = Annotated[LoadSettings, PlainSerializer(lambda load: to_jsonable_python(load.as_given()))]
"""Runtimes' own options go by their names, as users give them."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Plan the memory of each of these; no weights are read."""

    asked: tuple[tuple[Load, EngineSettings], ...]
    seconds: float | None = None
    """After which no other is begun."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A budget that is too small."""

    message: str
    smallest_bytes: int


@dataclass(frozen=True, slots=True)
class Surveyed:
    """An answer for each, in that order."""

    plans: tuple[MemoryPlan | Refused, ...]
    without_gpu: tuple[Path, ...] = ()
    """Of the models that were asked about, those that no GPU could compute."""


@dataclass(frozen=True, slots=True)
class ReadDisk:
    """Read a file past the page cache, `n_parallel` reads of `read_bytes` at a time."""

    path: Path
    read_bytes: int
    n_parallel: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReadSpeed:
    """What such reads reach."""

    read_bytes: int
    n_parallel: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class AskGpus:
    """Find the GPUs that could compute these models, and copy `copy_bytes` to each at a time."""

    models: tuple[Path, ...]
    copy_bytes: int
    seconds: float
    """Of copying, for each runtime."""


@dataclass(frozen=True, slots=True)
class ModelGpu:
    """The GPU that a model's runtime could compute it on."""

    model: Path
    runtime: str
    gpu: str
    """Its name, for people."""
    n_layers: int
    """Of the model; 0 where its files do not say."""
    copy_bytes: int
    bytes_per_s: float
    """Of copies of so many bytes at a time from the process's memory."""


@dataclass(frozen=True, slots=True)
class GpusFound:
    """Models that no GPU could compute are left out."""

    gpus: tuple[ModelGpu, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """Continue prompts greedily, then time passes over some numbers of nodes."""

    load: Load
    engine: EngineSettings
    prompts: tuple[str, ...]
    n_tokens: int
    """Of each text, at most."""
    pass_sizes: tuple[int, ...]
    seconds: float
    """After loading; what takes longer ends early."""


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt and its greedy continuation."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    decode_s: float = 0.0
    n_with_prompt: int = 0
    """Of the tokens, those that came when the prompt was read, for which no time was spent."""

    @property
    def token_s(self) -> float:
        """Seconds of decoding for each token; 0 where there was none."""
        return self.decode_s / max(1, len(self.tokens) - self.n_with_prompt)


@dataclass(frozen=True, slots=True)
class PassTiming:
    """One pass of the target."""

    n_nodes: int
    wall_s: float
    stall_s: float
    """In which computing waited for weights."""
    bytes_read: int

    @property
    def compute_s(self) -> float:
        return max(0.0, self.wall_s - self.stall_s)


@dataclass(frozen=True, slots=True)
class TreeYield:
    """What rounds bring whose trees have up to so many guesses, and what drafting them takes."""

    drafted_nodes: int
    tokens_per_pass: float
    draft_s: float
    """Of a round."""


@dataclass(frozen=True, slots=True)
class Written:
    """What it brought, and what it cost."""

    texts: tuple[Text, ...]
    rounds: tuple[RoundCost, ...]
    load_s: float
    peak_bytes: int
    bytes_per_pass: int
    """As planned there; 0 where nothing is paged."""
    passes: tuple[PassTiming, ...] = ()
    lookups: tuple[TreeYield, ...] = ()
    """What guesses from these texts would have brought alone, if passes were timed."""
    notes: tuple[str, ...] = ()
    others: float = 0.0
    """Share of the cores that other processes took meanwhile, as whoever started this one saw."""

    @property
    def is_disturbed(self) -> bool:
        """It would have been faster on an idle machine."""
        return self.others > TOO_MUCH

    @property
    def n_tokens(self) -> int:
        return sum(len(text.tokens) for text in self.texts)

    @property
    def tokens_per_s(self) -> float:
        """As if all texts were equally long: one that went fast does not count for more."""
        paces = [text.token_s for text in self.texts if text.decode_s > 0]
        return len(paces) / sum(paces) if sum(paces) > 0 else 0.0

    @property
    def tokens_per_pass(self) -> float:
        n_tokens = sum(cost.n_tokens for cost in self.rounds)
        return n_tokens / max(1, sum(cost.passes for cost in self.rounds))


@dataclass(frozen=True, slots=True)
class Replay:
    """Let a draft, which `load` names as its model, guess at texts that are known."""

    load: Load
    texts: tuple[Text, ...]
    tree_sizes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Trust:
    """Of the draft's first choices of so much confidence, how many were the target's token."""

    least_confidence: float
    n_guesses: int
    n_right: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a draft did."""

    trees: tuple[TreeYield, ...]
    """Small ones first."""
    trust: tuple[Trust, ...]
    peak_bytes: int

    @property
    def alpha(self) -> float:
        """The share of the target's tokens that the draft ranks first: Leviathan's alpha for a
        greedy line."""
        n_guesses = sum(trust.n_guesses for trust in self.trust)
        return sum(trust.n_right for trust in self.trust) / n_guesses if n_guesses else 0.0


MESSAGES = Messages(
    (
        *(Survey, Surveyed, ReadDisk, ReadSpeed, AskGpus, GpusFound),
        *(Write, Written, Replay, Replayed, Failed),
    )
)
