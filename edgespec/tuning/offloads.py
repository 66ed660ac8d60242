"""What a GPU could compute of a pair, as its runtimes declare it: options by what they are called.

Knows neither what that brings nor who chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.config import LoadSettings
from edgespec.options import Role, RuntimeOptions, declared
from edgespec.tuning.measurements import ModelGpu


@dataclass(frozen=True, slots=True)
class Offload:
    """Options with which a GPU computes layers of a model."""

    says: str
    """What a user would add: `-ngld 25`."""
    given: tuple[tuple[str, Any], ...]
    """The options' names and values."""

    def added_to(self, load: LoadSettings) -> LoadSettings:
        return LoadSettings.model_validate(load.as_given() | dict(self.given))


def offloads(
    load: LoadSettings, gpus: Sequence[ModelGpu], model: Path, role: Role
) -> Iterator[Offload]:
    """Those of one model; none where no GPU could compute it, or where the user settled it."""
    for gpu in gpus:
        kind = declared().get(gpu.runtime)
        if gpu.model == model and gpu.n_layers and kind is not None:
            usual = kind.of(load.options.get(gpu.runtime))
            for says, changed in usual.on_gpu(role, gpu.n_layers).items():
                yield Offload(says, _differing(usual, changed))


def _differing(usual: RuntimeOptions, changed: RuntimeOptions) -> tuple[tuple[str, Any], ...]:
    values = changed.model_dump()
    return tuple((name, value) for name, value in values.items() if value != getattr(usual, name))
