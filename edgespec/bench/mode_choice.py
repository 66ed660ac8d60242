"""Decides which modes can run on the models and limits of a bench, and says why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgespec import runtimes
from edgespec.bench.bench_report import SkippedMode
from edgespec.bench.bench_runs import ModelSurvey
from edgespec.bench.modes import BenchDraft, Mode
from edgespec.models.model_files import distinct_names
from edgespec.runtimes import Runtime
from edgespec.settings.units import format_size


def named_drafts(paths: Sequence[Path], target: Path, runtime: Runtime) -> list[BenchDraft]:
    """Drafts with unique names for a target of this runtime."""
    drafts = []
    for path, name in zip(paths, distinct_names(paths), strict=True):
        is_own = path == target and runtimes.guesses_itself(target)
        is_whole = not is_own and runtimes.describe(path).head is None
        in_library = is_whole and runtimes.find(path).name == runtime.name
        drafts.append(BenchDraft(path, name, in_library, is_own))
    return drafts


def applicable(
    modes: Sequence[Mode], surveyed: ModelSurvey, room_bytes: int
) -> tuple[list[Mode], list[SkippedMode]]:
    """The modes that can run, and the others with reasons."""
    fitting, left_out = [], []
    for mode in modes:
        if mode.drafts and mode.draft is None:
            left_out.append(SkippedMode(mode.name, "there is no draft: -md names one"))
        elif mode.draft and mode.engine is None and not mode.draft.in_library:
            left_out.append(SkippedMode(mode.name, "its library cannot run this draft"))
        elif mode.draft and (obstacle := surveyed.obstacles.get(mode.draft.path)):
            left_out.append(SkippedMode(mode.name, obstacle))
        elif mode.resident and surveyed.resident_bytes > room_bytes:
            needs, has = format_size(surveyed.resident_bytes), format_size(room_bytes)
            left_out.append(
                SkippedMode(mode.name, f"it needs {needs} of memory and there are {has}")
            )
        else:
            fitting.append(mode)
    return fitting, left_out


def in_parallel(
    modes: Sequence[Mode], numbers: Sequence[int]
) -> tuple[list[Mode], list[SkippedMode]]:
    """The modes repeated for each number of texts, and those that decode one text at a time."""
    alone = [mode for mode in modes if not mode.takes_several]
    reason = "with --parallel its library is not measured: it decodes one text at a time here"
    left_out = [SkippedMode(mode.name, reason) for mode in alone]
    fitting = []
    for mode in (mode.together(n) for n in numbers for mode in modes if mode not in alone):
        if mode.draft and mode.draft.is_own and mode.n_texts != 1:
            left_out.append(SkippedMode(mode.name, "the target's own layer guesses for one text"))
        else:
            fitting.append(mode)
    return fitting, left_out
