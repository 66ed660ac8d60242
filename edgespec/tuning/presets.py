"""Presets of tuned settings: files for `--config` that later runs also find by themselves.

Knows the file and its key (device, pair, budget), not how its settings were found.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgespec.errors import EdgespecError, UsageError
from edgespec.files import cache_folder
from edgespec.files.unfinished import unfinished_file
from edgespec.memory import process
from edgespec.settings.base import spell
from edgespec.settings.config import LoadSettings
from edgespec.settings.options import option_names
from edgespec.settings.toml_file import read_config

TUNED = frozenset({"threads", "threads_draft", "draft_max", "no_overlap", "lookup", "no_draft"})
"""Settings of a preset that apply automatically, because they do not change the text; options of a
runtime that are only for drafts do, too."""
_NOT_IN_KEY = frozenset(
    {"model", "draft", "optional_draft", "memory_budget", "threads", "threads_draft"}
    | {"n_parallel", "reserve"}
    | {"prompt_cache", "prompt_cache_size"}
)
"""Settings for loading that are not part of a preset's key, or only indirectly."""
_STEPS_PER_DOUBLING = 4
"""Resolution of `auto` budgets in a preset's key, in steps per doubling: budgets within about a
fifth of each other share a preset."""

_TRIAL_BYTES = 16 << 10
"""More bytes than a preset has."""


def path_of(load: LoadSettings) -> Path:
    """Path of the preset for these models, this budget and this device."""
    key = json.dumps(
        [
            device_identity(load.model),
            model_identity(load.model, load.draft),
            _budget(load),
            _other_settings(load),
        ]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    return cache_folder.tuned() / f"{digest}.toml"


def find(load: LoadSettings) -> tuple[Path, dict[str, Any]] | None:
    """Path of the preset for `load` and its automatic settings; None if it cannot be read."""
    try:
        path = path_of(load)
        if not path.is_file():
            return None
        settings = read_config(path)
    except (OSError, EdgespecError):
        return None
    applying = TUNED | option_names("draft").keys()
    return path, {name: value for name, value in settings.items() if name in applying}


def toml(settings: Mapping[str, Any], reasons: Sequence[str]) -> str:
    """Content of a preset for `--config`, with `reasons` as comments."""
    lines = [f"# {line}".rstrip() for reason in reasons for line in reason.splitlines()]
    for name, value in settings.items():
        shown = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
        lines.append(f"{spell(name).removeprefix('--')} = {shown}")
    return "\n".join(lines) + "\n"


def save(text: str, path: Path) -> None:
    """Write the file atomically. Raises EdgespecError."""
    with _naming(path):
        _write(text, path)


def check_writable(path: Path) -> None:
    """Raise the errors of `save` early, before tuning takes minutes."""
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder: name a file in it")
    if not path.parent.is_dir() and path.parent != cache_folder.tuned():
        raise UsageError(
            f"--out {path}: there is no folder {path.parent}: make it, or name another file"
        )
    trial = path.with_name(f"{path.name}.trial")
    with _naming(path):
        _write("#" * _TRIAL_BYTES, trial)
        trial.unlink()


def _write(text: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished_file(path) as file:
        file.write(text.encode())


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Context manager that raises errors of writing `path` as EdgespecError."""
    try:
        yield
    except OSError as error:
        raise EdgespecError(
            f"{path} cannot be written ({error.strerror}): name another place with --out FILE"
        ) from error


def device_identity(model: Path) -> list[Any]:
    """Processor, cores, memory in GiB, and the disk that holds the model."""
    gib = round(process.total_bytes() / (1 << 30))
    return [process.processor()[0], process.usable_cores(), gib, model.stat().st_dev]


def model_identity(*models: Path | None) -> list[Any]:
    """Paths, sizes and modification times of these models, which identify their files."""
    return [_identity(path) for path in models if path is not None]


def _identity(path: Path) -> list[Any]:
    parts = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [part.stat() for part in parts if part.is_file()]
    newest = max((stat.st_mtime_ns for stat in stats), default=0)
    return [str(path.resolve()), sum(stat.st_size for stat in stats), newest]


def _budget(load: LoadSettings) -> str:
    if load.memory_budget != "auto":
        return str(process.resolve_budget(load.memory_budget))
    nbytes = process.resolve_budget("auto")
    return f"auto {round(_STEPS_PER_DOUBLING * math.log2(max(nbytes, 1)))}"


def _other_settings(load: LoadSettings) -> list[tuple[str, str]]:
    """Given settings that differ from their defaults, as part of the preset's key."""
    usual = LoadSettings(model=load.model, draft=load.draft)
    elsewhere = _NOT_IN_KEY | option_names("draft").keys()
    said = {name: str(value) for name, value in load.as_given().items() if name not in elsewhere}
    for options in load.options.values():
        unlike = {*options.changed("target"), *options.changed("draft")}
        said = {k: v for k, v in said.items() if k in unlike or k not in type(options).model_fields}
    for name in said.keys() & LoadSettings.model_fields.keys():
        if getattr(load, name) == getattr(usual, name):
            del said[name]
    return sorted(said.items())
