"""Chooses the files of a repository that a reference names. Uses no network.

Repositories of ONNX models for browsers keep variants in one folder (`onnx/model_q4f16.onnx`),
onnxruntime-genai's in folders of their own (`cpu-int4-rtn-block-32-acc-level-4/model.onnx`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from edgespec.errors import ModelError
from edgespec.files import gguf_names
from edgespec.settings.hub_reference import HubReference
from edgespec.settings.units import format_size

DEFAULT_QUANT = "Q4_K_M"
"""Quantisation of a name without one, as in llama.cpp; without such a file, the first by name."""
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?I?Q\d(?:_\w+?)?|BF16|F16|F32|FP16|MXFP4(?:_\w+?)?|TQ\d_\d)(?=$|[-./])",
    re.IGNORECASE,
)
DEFAULT_VARIANTS = ("q4", "int4")
"""Variants of a name without one, best first; without such a graph, the shortest name."""
SUFFIX = ".onnx"
_WHOLE = "model"
_NO_DECODER = re.compile(
    r"(^|[-._/])(vision|audio|speech|image|text|embed|embeddings?|encoder|embed_tokens)([-._/]|$)",
    re.IGNORECASE,
)
"""Graphs that are parts of other models, such as image encoders."""
_SETTINGS = (
    *("config.json", "genai_config.json", "generation_config.json", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    name: str
    size_bytes: int
    digits: str = ""
    """Hexadecimal SHA-256, or for small files the SHA-1 of the Git blob with its header, as the hub
    claims; empty for a file of the cache."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model: one file, all parts of a split one in order, or an ONNX graph and what it needs."""

    files: tuple[HubFile, ...]

    @property
    def name(self) -> str:
        """Name without `.gguf` and the number of a part, or without `.onnx`."""
        part = gguf_names.PART.fullmatch(self.files[0].name)
        return part["name"] if part else self.files[0].name[: -len(SUFFIX)]

    @property
    def is_onnx(self) -> bool:
        return self.files[0].name.lower().endswith(SUFFIX)

    @property
    def quant(self) -> str | None:
        """Quantisation in the name, or the variant of an ONNX model; None if there is none."""
        if self.is_onnx:  # `q4f16` of `onnx/model_q4f16`
            path = PurePosixPath(self.name)
            by_folder = path.name == _WHOLE and path.parent.name not in ("", "onnx")
            return (path.parent if by_folder else path).name.removeprefix(f"{_WHOLE}_")
        return next(reversed(_QUANT.findall(self.name)), None)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def is_called(self, word: str) -> bool:
        """True if `word` is a whole word of the name."""
        # an underscore belongs to a quantisation: Q4_K is not Q4_K_M
        ends = "[-._/]" if self.is_onnx else "[-./]"
        return bool(
            re.search(rf"(?:^|{ends}){re.escape(word)}(?=$|{ends})", self.name, re.IGNORECASE)
        )


def choose(reference: HubReference, files: Iterable[HubFile]) -> HubModel:
    """The model that `reference` names: GGUF if the repository has such models, else ONNX, else a
    drafting head, if that may be meant.

    Raises ModelError, which lists the models that exist.
    """
    everything = list(files)
    ggufs, heads = gguf_models(everything), gguf_models(everything, heads=True)
    if reference.takes_heads and (reference.path or not ggufs):
        ggufs += heads
    models = [*ggufs, *onnx_models(everything)]
    if not models:
        raise ModelError(
            f"{reference.repo} holds no model but drafting heads ({heads[0].name}): name a model "
            "with -hf or -m, and this repository with -hfd"
            if heads
            else f"{reference.repo} has no GGUF or ONNX model: choose a repository whose name ends "
            "in -GGUF, or download the files and give their folder with -m"
        )
    matching = [model for model in models if reference.names([model.files[0].name])]
    if reference.quant:
        matching = [model for model in matching if model.is_called(reference.quant)]
    elif matching:
        matching = [model for model in matching if model.is_onnx == matching[0].is_onnx]
        words = DEFAULT_VARIANTS if matching[0].is_onnx else (DEFAULT_QUANT,)
        usual = ([one for one in matching if one.is_called(word)] for word in words)
        matching = next(filter(None, usual), matching[:1])
    if not matching:
        known = (f"{one.quant or one.name} ({format_size(one.size_bytes)})" for one in models)
        wanted = reference.quant or reference.path
        raise ModelError(f"{reference.repo} has no {wanted}; it has: {', '.join(known)}")
    chosen = min(matching, key=lambda model: (model.is_onnx, len(model.name), model.name))
    part = gguf_names.PART.fullmatch(chosen.files[0].name)
    if part and len(chosen.files) < int(part["count"]):
        raise ModelError(
            f"{reference}: {len(chosen.files)} of {int(part['count'])} parts are in the "
            "repository: choose another quantisation"
        )
    return chosen


def gguf_models(files: Iterable[HubFile], heads: bool = False) -> list[HubModel]:
    """The GGUF models, or drafting heads, among `files`, by name; all parts of one together."""
    by_name = {file.name: file for file in files}
    found = gguf_names.models(by_name, heads).values()
    return [HubModel(tuple(by_name[name] for name in parts)) for parts in found]


def onnx_models(files: Iterable[HubFile]) -> list[HubModel]:
    """The ONNX models among `files`, shortest names first; the graph is the first file of each."""
    by_length = sorted(files, key=lambda file: (len(file.name), file.name))
    return [
        HubModel((file, *_belonging(file, by_length)))
        for file in by_length
        if file.name.lower().endswith(SUFFIX) and not _NO_DECODER.search(file.name)
    ]


def _belonging(graph: HubFile, files: Iterable[HubFile]) -> list[HubFile]:
    """Files with the graph's weights, and settings beside it or in a folder above."""
    folders = {*PurePosixPath(graph.name).parents}
    weights = f"{graph.name}_data", f"{graph.name}.data", f"{graph.name[: -len(SUFFIX)]}.data"
    found = []
    for file in files:
        path = PurePosixPath(file.name)
        if file.name.startswith(weights) or (path.name in _SETTINGS and path.parent in folders):
            found.append(file)
    return sorted(found, key=lambda file: file.name)
