"""Who measures on this machine, with processes that answer what the test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgespec.bench.launching import Launched
from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.tuning import laboratory
from edgespec.tuning.laboratory import Laboratory
from edgespec.tuning.measurements import AskGpus, GpusFound, ModelGpu, Survey, Surveyed

TARGET, DRAFT = Path("big.gguf"), Path("small.gguf")
GPU = ModelGpu(TARGET, "gguf", "a GPU", 24, 4, 1e9)


@dataclass
class Processes:
    """Stand for `launch`."""

    answers: dict[type, Any]
    asked: list[type] = field(default_factory=list)

    def __call__(self, job: Any, *_: Any, **__: Any) -> Launched:
        self.asked.append(type(job))
        return Launched(self.answers[type(job)], 0.0, ())


def surveyed(monkeypatch: pytest.MonkeyPatch, *without_gpu: Path) -> tuple[Laboratory, Processes]:
    processes = Processes({Survey: Surveyed((), without_gpu), AskGpus: GpusFound((GPU,))})
    monkeypatch.setattr(laboratory, "launch", processes)
    lab = Laboratory(TARGET, (), 10.0)
    lab.plans([(LoadSettings(model=TARGET, draft=DRAFT), EngineSettings())])
    return lab, processes


def test_where_a_plan_found_no_gpu_none_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    lab, processes = surveyed(monkeypatch, TARGET, DRAFT)
    assert lab.gpus([TARGET, DRAFT]) == ()
    assert processes.asked == [Survey]


def test_a_model_of_which_nothing_is_known_is_asked_about(monkeypatch: pytest.MonkeyPatch):
    lab, processes = surveyed(monkeypatch, TARGET)
    assert lab.gpus([TARGET, DRAFT]) == (GPU,)
    assert processes.asked == [Survey, AskGpus]
