"""Parses names of models on a hub and chooses the files of a repository. Uses no network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgespec.errors import ModelError, UsageError
from edgespec.hub.files import HubFile, HubModel
from edgespec.hub.onnx_choice import onnx_models, variant_of, with_variant
from edgespec.settings.units import format_size

DEFAULT_QUANT = "Q4_K_M"
"""Quantisation of a name without one, as in llama.cpp; without such a file, the first by name."""

_REFERENCE = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?::([\w.-]+))?", re.ASCII)
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_NO_MODEL = re.compile(r"(^|[-._/])(mmproj|imatrix)", re.IGNORECASE)
"""Files that are not language models: image encoders, statistics for quantising."""


@dataclass(frozen=True, slots=True)
class HubReference:
    """A user's name for a model on a hub: `USER/REPO` or `USER/REPO:QUANT`."""

    repo: str
    quant: str | None = None
    """Quantisation in the file name, such as `Q4_K_M`, ignoring case; None: the default."""

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def parse_reference(text: str) -> HubReference:
    """Parse a reference in llama.cpp's notation. Raises UsageError."""
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} names no model of a hub: write USER/REPO or USER/REPO:QUANT, such as "
            "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"
        )
    return HubReference(match[1], match[2])


def choose(reference: HubReference, files: Iterable[HubFile]) -> HubModel:
    """The model that `reference` names: GGUF if the repository has such models, else ONNX.

    Raises ModelError, which lists the models that exist.
    """
    everything = list(files)
    models, graphs = gguf_models(everything), onnx_models(everything)
    if not models and not graphs:
        raise ModelError(_nothing_here(reference, everything))
    quant = reference.quant or DEFAULT_QUANT
    matching = [model for model in models if _has_quant(model, quant)]
    if not matching and reference.quant is None:
        matching = models[:1]
    if not matching and (graph := with_variant(graphs, reference.quant)):
        return graph
    if not matching:
        known = [(model.quant or model.name, model.size_bytes) for model in models]
        known += [(variant_of(graph), graph.size_bytes) for graph in graphs]
        others = ", ".join(f"{name} ({format_size(size)})" for name, size in known)
        raise ModelError(f"{reference.repo} has no {reference.quant}; it has: {others}")
    chosen = min(matching, key=lambda model: (len(model.name), model.name))
    _check_parts(reference, chosen)
    return chosen


def gguf_models(files: Iterable[HubFile]) -> list[HubModel]:
    """The GGUF models among `files`, by name; parts of a split model are one."""
    grouped: dict[str, list[HubFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        if file.name.lower().endswith(".gguf") and not _NO_MODEL.search(file.name):
            part = _PART.fullmatch(file.name)
            grouped.setdefault(part["name"] if part else file.name[:-5], []).append(file)
    return [HubModel(name, tuple(parts)) for name, parts in sorted(grouped.items())]


def _has_quant(model: HubModel, quant: str) -> bool:
    """True if the quantisation is a whole word of the name: Q4_K is not Q4_K_M."""
    pattern = rf"(?:^|[-./]){re.escape(quant)}(?=$|[-./])"
    return re.search(pattern, model.name, re.IGNORECASE) is not None


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
    content = f"it holds {', '.join(kinds[:8])} files" if kinds else "it is empty"
    return (
        f"{reference.repo} has no GGUF or ONNX model ({content}): choose a repository whose name "
        "ends in -GGUF, or download the files and give their folder with -m"
    )
