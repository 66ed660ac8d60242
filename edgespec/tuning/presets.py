"""Presets: settings that were found, as a file that `--config` takes and that is found again.

Knows the file, and which device, pair and budget it is for; not how its settings were found.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.errors import EdgespecError, UsageError
from edgespec.files import cache_folder
from edgespec.files.unfinished import unfinished_file
from edgespec.memory import process
from edgespec.settings.base import spell
from edgespec.settings.config import LoadSettings, read_config
from edgespec.settings.options import option_names

TUNED = frozenset({"threads", "threads_draft", "draft_max", "no_overlap", "lookup", "no_draft"})
"""Settings that a preset may change by itself: none changes the text. Nor do a runtime's options
that are only for drafts."""
_ELSEWHERE = frozenset(
    {"model", "draft", "memory_budget", "threads", "threads_draft"}
    | {"grammars", "logprobs", "n_parallel", "state_files", "most_body_bytes"}
)
"""Settings of loading that do not tell presets apart, or do it in their own way."""
_STEPS_PER_DOUBLING = 4
"""Steps per doubling in which `auto` budgets are told apart: budgets within a fifth of each other
are alike."""


def place(load: LoadSettings) -> Path:
    """Path of the preset for these models, this budget and this device."""
    said = json.dumps(
        [device(load.model), files(load.model, load.draft), _budget(load), _others(load)]
    )
    digest = hashlib.sha256(said.encode()).hexdigest()[:24]
    return cache_folder.tuned() / f"{digest}.toml"


def recall(load: LoadSettings) -> tuple[Path, dict[str, Any]] | None:
    """The preset that was found for this, and the settings in it that apply by themselves. What
    cannot be read is as good as none."""
    try:
        path = place(load)
        if not path.is_file():
            return None
        settings = read_config(path)
    except (OSError, EdgespecError):
        return None
    applying = TUNED | option_names("draft").keys()
    return path, {name: value for name, value in settings.items() if name in applying}


def toml(settings: Mapping[str, Any], reasons: Sequence[str]) -> str:
    """A file that `--config` takes; `reasons` are its comments."""
    lines = [f"# {line}".rstrip() for reason in reasons for line in reason.splitlines()]
    for name, value in settings.items():
        shown = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
        lines.append(f"{spell(name).removeprefix('--')} = {shown}")
    return "\n".join(lines) + "\n"


def save(text: str, path: Path) -> None:
    """The whole file or none. Raises EdgespecError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file(path) as file:
            file.write(text.encode())
    except UsageError:
        raise
    except OSError as error:
        raise EdgespecError(
            f"{path} cannot be written ({error.strerror}): name another place with --out FILE"
        ) from error


def check_place(path: Path) -> None:
    """Raise what `save` would, before minutes are spent."""
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder: name a file")
    if not path.parent.is_dir() and path.parent != cache_folder.tuned():
        raise UsageError(f"--out {path}: there is no folder {path.parent}")
    trial = path.with_name(f"{path.name}.trial")
    save("", trial)
    trial.unlink()


def device(model: Path) -> list[Any]:
    """Processor, cores, memory in GiB, and the disk that holds the model."""
    gib = round(process.total_bytes() / (1 << 30))
    return [process.processor()[0], process.usable_cores(), gib, model.stat().st_dev]


def files(*models: Path | None) -> list[Any]:
    """Identity of these models; a file that was replaced is another model."""
    return [_model(path) for path in models if path is not None]


def _model(path: Path) -> list[Any]:
    parts = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [part.stat() for part in parts if part.is_file()]
    newest = max((stat.st_mtime_ns for stat in stats), default=0)
    return [str(path.resolve()), sum(stat.st_size for stat in stats), newest]


def _budget(load: LoadSettings) -> str:
    if load.memory_budget != "auto":
        return str(process.resolve_budget(load.memory_budget))
    nbytes = process.resolve_budget("auto")
    return f"auto {round(_STEPS_PER_DOUBLING * math.log2(max(nbytes, 1)))}"


def _others(load: LoadSettings) -> list[tuple[str, str]]:
    """At their defaults or not given is the same."""
    usual = LoadSettings(model=load.model, draft=load.draft)
    elsewhere = _ELSEWHERE | option_names("draft").keys()
    said = {name: str(value) for name, value in load.as_given().items() if name not in elsewhere}
    for options in load.options.values():
        unlike = {*options.changed("target"), *options.changed("draft")}
        said = {k: v for k, v in said.items() if k in unlike or k not in type(options).model_fields}
    for name in said.keys() & LoadSettings.model_fields.keys():
        if getattr(load, name) == getattr(usual, name):
            del said[name]
    return sorted(said.items())
