"""Which files of a repository are the model that is meant. Names and sizes in, files out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgespec.errors import ModelError
from edgespec.hub.reference import HubReference
from edgespec.settings.units import format_size

DEFAULT_QUANT = "Q4_K_M"
"""llama.cpp's choice, too; where there is none, the first model by name."""

_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?I?Q\d(?:_\w+?)?|BF16|F16|F32|FP16|MXFP4(?:_\w+?)?|TQ\d_\d)(?=$|[-./])",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"(^|[-._/])(mmproj|imatrix)", re.IGNORECASE)
"""Parts of other things: an image encoder, statistics for quantising."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model: one file, or all parts of a split one in order."""

    name: str
    """Without `.gguf` and the number of a part."""
    files: tuple[HubFile, ...]

    @property
    def quant(self) -> str | None:
        """What its name says about quantisation."""
        found = _QUANT.findall(self.name)
        return found[-1] if found else None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def choose(reference: HubReference, files: Iterable[HubFile]) -> HubModel:
    """The model that `reference` names. Raises ModelError, with what there is instead."""
    everything = list(files)
    models = gguf_models(everything)
    if not models:
        raise ModelError(_nothing_here(reference, everything))
    wanted = reference.quant or DEFAULT_QUANT
    found = [model for model in models if _is_called(model, wanted)]
    if not found and reference.quant is None:
        found = models[:1]
    if not found:
        raise ModelError(
            f"{reference.repo} has no {reference.quant}; it has: {', '.join(map(_label, models))}"
        )
    chosen = min(found, key=lambda model: (len(model.name), model.name))
    _check_parts(reference, chosen)
    return chosen


def gguf_models(files: Iterable[HubFile]) -> list[HubModel]:
    """The GGUF models among `files`, by name; the parts of a split one together."""
    grouped: dict[str, list[HubFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        if file.name.lower().endswith(".gguf") and not _NO_MODEL.search(file.name):
            part = _PART.fullmatch(file.name)
            grouped.setdefault(part["name"] if part else file.name[:-5], []).append(file)
    return [HubModel(name, tuple(parts)) for name, parts in sorted(grouped.items())]


def _is_called(model: HubModel, quant: str) -> bool:
    """Whether the quantisation stands in the name by itself: Q4_K is not Q4_K_M."""
    pattern = rf"(?:^|[-./]){re.escape(quant)}(?=$|[-./])"
    return re.search(pattern, model.name, re.IGNORECASE) is not None


def _label(model: HubModel) -> str:
    return f"{model.quant or model.name} ({format_size(model.size_bytes)})"


def _check_parts(reference: HubReference, model: HubModel) -> None:
    first = _PART.fullmatch(model.files[0].name)
    if first is None:
        return
    count = int(first["count"])
    numbers = {int(part["number"]) for file in model.files if (part := _PART.fullmatch(file.name))}
    if missing := sorted({*range(1, count + 1)} - numbers):
        raise ModelError(
            f"{reference}: part {missing[0]} of {count} is missing in the repository: choose "
            "another quantisation"
        )


def _nothing_here(reference: HubReference, files: Sequence[HubFile]) -> str:
    kinds = sorted({file.name.rsplit(".", 1)[-1] for file in files if "." in file.name})
    if graph := next((file.name for file in files if file.name.endswith(".onnx")), None):
        folder = f"DIR/{graph.rpartition('/')[0]}".rstrip("/")
        return (
            f"{reference.repo} holds ONNX models, and only GGUF models are fetched by name: "
            f"`hf download {reference.repo} --local-dir DIR` brings it; put tokenizer.json and "
            "config.json beside the graph where they are not, and name it with "
            f"-m {folder}/{graph.rpartition('/')[2]}"
        )
    there = f"it holds {', '.join(kinds[:8])} files" if kinds else "it is empty"
    return (
        f"{reference.repo} has no GGUF model ({there}): choose a repository whose name ends in "
        "-GGUF, or download the files and give their folder with -m"
    )
