"""The models that have a name: those that come with edgespec and those in its cache.

Knows names and files; `describe.py` asks runtimes for a model's details.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePath, PurePosixPath

from edgespec.errors import ModelError
from edgespec.files import cache_folder, gguf_names
from edgespec.models import packaged
from edgespec.models.embedded import (
    EmbeddedFile,
    EmbeddedModel,
    Role,
    default_file,
    manifest,
    models_folder,
)
from edgespec.settings import hub_reference
from edgespec.settings.base import expanded, nearest
from edgespec.settings.parsing import SELF


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with a name, in one format and quantisation."""

    name: str
    path: Path
    """A file, or a folder for a model with several files."""
    files: tuple[Path, ...]
    format: str
    role: Role | None = None
    """Role of a model that comes with edgespec."""
    quantization: str | None = None
    parameters: int | None = None
    licence: str | None = None
    chats: bool = False
    problem: str | None = None
    """Why its runtime could not describe it."""
    to_fetch_bytes: int = 0
    """Size of a model that is not downloaded yet; 0 for all others."""

    @property
    def is_embedded(self) -> bool:
        return self.role is not None

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files if file.exists())


def find(name: str) -> Path:
    """Path of a model given by a name of the catalogue or by a path. Raises ModelError.

    `embedded` and `target` are the embedded target, `draft` is its draft.
    """
    found = lookup(name)
    if found is not None:
        return found
    if name in packaged.models():
        raise ModelError(f"{name} is not here yet: edgespec models pull {name} fetches it")
    if said := hint(name):
        raise ModelError(said)
    known = [*_names(), *packaged.models()]
    raise ModelError(
        f"{name}: no such file, and no model of this name{nearest(name, known)} "
        "(edgespec models list shows the names; edgespec models pull USER/REPO fetches others)"
    )


def lookup(name: str) -> Path | None:
    """Path for a known name or an existing file, else None; a name wins over a file.

    Raises UsageError for a folder with several GGUF models.
    """
    if PurePath(name).name == name and (known := _names().get(name)):
        return known
    path = expanded(name)
    try:
        return gguf_names.in_folder(path) if path.exists() else None
    except OSError:  # too long for a path
        return None


def hint(name: str) -> str | None:
    """Advice about a name that is a URL, a repository, an Ollama tag or `self`; else None."""
    if name == SELF:
        return (
            "self is a draft made from the target, for -md of chat, generate, serve, batch and "
            "plan: edgespec models draft TARGET OUT makes it as a file"
        )
    if repo := hub_reference.find(name):
        return (
            f"{name}: no such file; a repository of Hugging Face is fetched with "
            f"-hf {repo}, or by edgespec models pull {repo}"
        )
    if re.match(r"[a-z]+://", name):
        return f"{name} is an address: download the file, or name its repository with -hf USER/REPO"
    if _TAGGED.fullmatch(name):
        return (
            f"{name}: no such file, and names of Ollama's library are not known here; "
            "-hf USER/REPO fetches a model from Hugging Face"
        )
    return None


_TAGGED = re.compile(r"\w[\w.-]+:[\w.-]+")
"""Ollama tags such as `llama3.2:1b`, but no Windows drives."""


def embedded() -> list[KnownModel]:
    """Models of the manifests, even if their files are missing. Raises ModelError."""
    described = manifest()
    models = [
        known
        for role, model in described.models().items()
        for known in _forms(role, model, described.licence)
    ]
    return [*models, *_heads()]


def _heads() -> Iterator[KnownModel]:
    """Heads that come with edgespec, for models that can be fetched."""
    for name, model in packaged.models().items():
        if head := model.head:
            yield KnownModel(
                name=f"{name}-head",
                path=head.path,
                files=(head.path,),
                format="gguf",
                role="head",
                quantization=head.quantization,
                parameters=head.parameters,
                licence=head.licence,
            )


def cached() -> list[KnownModel]:
    """Models in the cache folder. Raises ModelError."""
    return [
        KnownModel(
            name=path.stem if path.is_file() else path.name,
            path=path,
            files=tuple(files_of(path)),
            format="gguf" if path.is_file() else "onnx",
        )
        for path in cache_folder.models()
    ]


def known(path: Path) -> KnownModel | None:
    """The embedded or cached model at `path`, else None."""
    everything, real = [*embedded(), *cached()], os.path.realpath
    return next((model for model in everything if real(model.path) == real(path)), None)


def files_of(path: Path) -> list[Path]:
    """The file itself, with a draft's lower bits, or all files of the folder."""
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path, *filter(Path.exists, [cache_folder.lower_parts(path)])]


def _names() -> dict[str, Path]:
    """Path by name for all known models; aliases such as `target` take precedence."""
    names = {model.name: model.path for model in cached()}
    for model in embedded():
        names[model.name] = model.path
        names[model.path.stem if model.path.suffix == ".gguf" else model.path.name] = model.path
    for role, described in manifest().models().items():
        names[role] = names[described.name]
    return names | {"embedded": names["target"]}


def _forms(role: Role, model: EmbeddedModel, licence: str) -> Iterator[KnownModel]:
    """The forms of an embedded model; the default has the model's name, others their file's."""
    folder = models_folder()
    default = default_file(model)
    for place, group in groupby(model.files, key=_place):
        files = list(group)
        first = files[0]
        yield KnownModel(
            name=model.name if first is default else PurePosixPath(place).stem,
            path=folder / place,
            files=tuple(folder / file.file for file in files),
            format=first.format,
            role=role,
            quantization=first.quantization,
            parameters=model.parameters,
            licence=licence,
        )


def _place(file: EmbeddedFile) -> str:
    """Relative path of a model: its GGUF file, or the folder of its ONNX export."""
    return file.file if file.format == "gguf" else str(PurePosixPath(file.file).parent)
