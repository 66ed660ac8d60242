"""Measures for a search: every measurement that loads models is a process of its own, bound as
asked, under the budget that is tuned for. Whatever ends it, the processes are gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from edgespec import errors
from edgespec.bench.launching import Child, Launched, launch
from edgespec.bench.limits import UNLIMITED, Limiter
from edgespec.bench.messages import Failed
from edgespec.bench.model_files import largest_of
from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, EdgespecError
from edgespec.memory.budget import MemoryPlan
from edgespec.paging.reader import READ_BYTES
from edgespec.tuning.measurements import (
    MESSAGES,
    AskGpus,
    GpusFound,
    ModelGpu,
    ReadDisk,
    ReadSpeed,
    Refused,
    Replay,
    Replayed,
    Survey,
    Surveyed,
    Text,
    Write,
    Written,
)
from edgespec.tuning.measuring import TREE_SIZES

CHILD = Child("edgespec.tuning.child", MESSAGES)
READS = ((READ_BYTES, 1), (1 << 20, 1), (256 << 10, 1), (READ_BYTES, 2), (READ_BYTES, 4))
"""Sizes and numbers at a time; the engine's own first."""
READ_S = 0.5
COPY_BYTES, COPY_S = 16 << 20, 0.5
"""Of copies to a GPU: about a layer of a small model at a time."""
FIRST_SHARE, MOST_FIRST_S = 2 / 5, 30.0
"""Of what is left of the time, for the run that all predictions rest on; loading not counted."""
RUN_SHARE, MOST_RUN_S = 1 / 6, 20.0
"""For each other measurement."""
LEAST_RUN_S = 2.0

T = TypeVar("T")


@dataclass(slots=True)
class Laboratory:
    """Implements `measuring.Lab` on this machine."""

    model: Path
    prompts: tuple[str, ...]
    seconds: float
    """That all measurements may take, more or less."""
    limiter: Limiter = UNLIMITED
    progress: Callable[[float], None] = lambda share: None
    """Hears the share of the time that is over."""
    clock: Callable[[], float] = time.monotonic
    _began: float = field(default_factory=time.monotonic)
    _without_gpu: set[Path] = field(default_factory=set)
    """Models of which a plan said so."""

    @property
    def left_s(self) -> float:
        return self.seconds - (self.clock() - self._began)

    def plans(
        self,
        asked: Sequence[tuple[LoadSettings, EngineSettings]],
        most_s: float | None = None,
    ) -> Sequence[MemoryPlan | Refused]:
        surveyed = self._measure(Survey(tuple(asked), most_s), Surveyed)
        self._without_gpu.update(surveyed.without_gpu)
        return surveyed.plans

    def read_speeds(self) -> Sequence[ReadSpeed]:
        path = largest_of(self.model)
        return [
            self._measure(ReadDisk(path, nbytes, n_parallel, READ_S), ReadSpeed)
            for nbytes, n_parallel in READS
            if path.stat().st_size > 4 * nbytes * n_parallel
        ]

    def gpus(self, models: Sequence[Path]) -> Sequence[ModelGpu]:
        if self._without_gpu.issuperset(models):
            return ()
        return self._measure(AskGpus(tuple(models), COPY_BYTES, COPY_S), GpusFound).gpus

    def write(
        self,
        load: LoadSettings,
        engine: EngineSettings,
        n_tokens: int,
        pass_sizes: tuple[int, ...] = (),
        most_s: float | None = None,
        n_texts: int | None = None,
    ) -> Written:
        if most_s is None:
            is_first = pass_sizes and n_texts is None
            most_s = self._run_s(FIRST_SHARE, MOST_FIRST_S) if is_first else self._run_s()
        job = Write(load, engine, self.prompts[:n_texts], n_tokens, pass_sizes, most_s)
        launched = self._launch(job)
        return replace(_answer(launched, Written), others=launched.others)

    def replay(self, load: LoadSettings, texts: tuple[Text, ...]) -> Replayed:
        return self._measure(Replay(load, texts, TREE_SIZES, self._run_s() / 2), Replayed)

    def _run_s(self, share: float = RUN_SHARE, most_s: float = MOST_RUN_S) -> float:
        return min(max(share * self.left_s, LEAST_RUN_S), most_s)

    def _measure(self, job: object, kind: type[T]) -> T:
        return _answer(self._launch(job), kind)

    def _launch(self, job: object) -> Launched:
        return launch(job, self.limiter, tick=self._tick, child=CHILD)

    def _tick(self) -> None:
        self.progress(min(1.0, 1 - self.left_s / self.seconds))


def _answer(launched: Launched, kind: type[T]) -> T:
    """Raises what the process failed with."""
    answer: Any = launched.answer
    if isinstance(answer, Failed):
        if answer.type == BudgetError.__name__:
            raise BudgetError(answer.message, answer.smallest_bytes)
        raised = getattr(errors, answer.type, EdgespecError)
        raise raised(answer.message)
    assert isinstance(answer, kind)
    return answer
