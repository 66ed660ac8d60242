"""Finds data files of edgespec: the embedded models and the presets.

In a wheel they are inside the package, in a checkout beside it. Opens no model.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgespec.errors import ModelError, UsageError
from edgespec.settings.base import expanded, nearest

Role = Literal["target", "draft", "mixture", "head"]

_PACKAGE = Path(__file__).parents[1]


class ManifestPart(BaseModel):
    """A part of a manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EmbeddedFile(ManifestPart):
    """One file of the manifest."""

    file: str
    """Path below the manifest's folder. A model of several files has a folder of its own."""
    format: Literal["gguf", "onnx"] = "gguf"
    quantization: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)


class EmbeddedModel(ManifestPart):
    """One model in all its formats and quantisations."""

    name: str
    parameters: int
    context_length: int
    files: tuple[EmbeddedFile, ...] = Field(min_length=1)


class Manifest(ManifestPart):
    """The contents of `embedded.toml`."""

    licence: str
    vocabulary: int
    target: EmbeddedModel
    draft: EmbeddedModel
    mixture: EmbeddedModel | None = None
    """A mixture of experts with the same vocabulary, another target for the draft."""

    def models(self) -> dict[Role, EmbeddedModel]:
        more: dict[Role, EmbeddedModel] = {"mixture": self.mixture} if self.mixture else {}
        return {"target": self.target, "draft": self.draft, **more}


@dataclass(frozen=True, slots=True)
class EmbeddedPair:
    """The default models."""

    target: Path
    draft: Path
    target_sha256: str


def manifest(package: Path = _PACKAGE) -> Manifest:
    """The manifest of the embedded models. Raises ModelError if this installation lacks it."""
    path = models_folder(package) / "embedded.toml"
    try:
        return Manifest.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ModelError(
            f"the embedded models are missing from {path.parent}: install edgespec again, "
            "or name a model with -m"
        ) from error
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{path} is damaged: install edgespec again ({reason})") from error


def models_folder(package: Path = _PACKAGE) -> Path:
    """Folder of the manifest and its files."""
    return _folder("models", package)


def embedded_pair(package: Path = _PACKAGE) -> EmbeddedPair:
    """The default GGUF files. Raises ModelError if there are none."""
    folder, described = models_folder(package), manifest(package)
    target, draft = default_file(described.target), default_file(described.draft)
    return EmbeddedPair(folder / target.file, folder / draft.file, target.sha256)


def default_file(model: EmbeddedModel) -> EmbeddedFile:
    """The GGUF file in Q8_0 of an embedded model. Raises ModelError."""
    for file in model.files:
        if (file.format, file.quantization) == ("gguf", "Q8_0"):
            return file
    raise ModelError(f"{model.name} is not embedded as GGUF in Q8_0: install edgespec again")


def shipped_prompts() -> Path:
    """File of prompts, beginnings of Python code, in JSON Lines."""
    return models_folder() / "prompts.jsonl"


def preset_names() -> list[str]:
    """Names of the presets that `--config` accepts besides files."""
    return sorted(path.stem for path in _folder("configs", _PACKAGE).glob("*.toml"))


def find_config(name: str) -> Path:
    """The file for a value of `--config`, a path or the name of a preset. Raises UsageError."""
    path = expanded(name)
    # special files are refused when they are read; Path.exists raises for a long name
    if os.path.exists(path) and not path.is_dir():  # noqa: PTH110
        return path
    names = preset_names()
    if name in names:
        return _folder("configs", _PACKAGE) / f"{name}.toml"
    raise UsageError(
        f"--config {name}: no such file, and no preset of this name{nearest(name, names)} "
        f"(presets: {', '.join(names) or 'none'})"
    )


def _folder(name: str, package: Path) -> Path:
    inside = package / f"_{name}"
    return inside if inside.is_dir() else package.parent / name
