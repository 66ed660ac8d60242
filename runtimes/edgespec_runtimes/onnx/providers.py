"""Which of onnxruntime's execution providers computes a model, and whether that is what happened.

The memory of a GPU is not planned: what goes there must fit, and nothing is streamed to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnxruntime as ort

from edgespec.errors import UsageError

CPU = "CPUExecutionProvider"
_NAMES = {"cuda": "CUDAExecutionProvider", "coreml": "CoreMLExecutionProvider"}


@dataclass(frozen=True, slots=True)
class Choice:
    """Providers in order of preference, as onnxruntime takes them; the CPU is the last."""

    providers: tuple[str, ...]

    @property
    def is_cpu(self) -> bool:
        return self.providers == (CPU,)

    def note(self, model: str, used: Iterable[str]) -> str | None:
        """What to say about a model whose sessions use these; onnxruntime falls back in silence."""
        missing = [name for name in self.providers if name not in set(used)]
        if missing:
            return f"onnxruntime could not use {missing[0]}: {model} runs on the CPU"
        if not self.is_cpu:
            return (
                f"{self.providers[0]} computes {model}, operators that it lacks run on the CPU; "
                "the memory of the GPU is not part of the plan"
            )
        return None


def choose(wanted: str) -> Choice:
    """`auto` is the CPU: only there is the memory budget held. Raises UsageError."""
    name = _NAMES.get(wanted)
    if name is None:
        return Choice((CPU,))
    if name not in ort.get_available_providers():
        raise UsageError(
            f"--provider {wanted}: this onnxruntime was built without it (it has "
            f"{', '.join(ort.get_available_providers())}); install a build that has it"
        )
    return Choice((name, CPU))
