"""Chooses an ONNX model of a repository: a graph, the files with its weights, and its settings.

Repositories for browsers keep variants in one folder (`onnx/model_q4f16.onnx`), onnxruntime-genai's
in folders of their own (`cpu-int4-rtn-block-32-acc-level-4/model.onnx`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from edgespec.hub.files import HubFile, HubModel

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
    "config.json",
    "genai_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def onnx_models(files: Sequence[HubFile]) -> list[HubModel]:
    """The ONNX models among `files`, shortest names first; the graph is the first file of each."""
    graphs = [
        file
        for file in files
        if file.name.lower().endswith(SUFFIX) and not _NO_DECODER.search(file.name)
    ]
    graphs.sort(key=lambda file: (len(file.name), file.name))
    return [
        HubModel(graph.name[: -len(SUFFIX)], (graph, *_belonging(graph, files))) for graph in graphs
    ]


def with_variant(models: Sequence[HubModel], variant: str | None) -> HubModel | None:
    """The model whose name has the words `variant`, or the default one; None if there is none."""
    for wanted in (variant,) if variant else DEFAULT_VARIANTS:
        pattern = re.compile(rf"(?:^|[-._/]){re.escape(wanted)}(?=$|[-._/])", re.IGNORECASE)
        if found := next((model for model in models if pattern.search(model.name)), None):
            return found
    if variant and variant.lower() == _WHOLE:
        return next((model for model in models if _word(model) == _WHOLE), None)
    return models[0] if models and not variant else None


def variant_of(model: HubModel) -> str:
    """The word by which a user names a variant: `q4f16` of `onnx/model_q4f16`."""
    return _word(model).removeprefix(f"{_WHOLE}_")


def _word(model: HubModel) -> str:
    path = PurePosixPath(model.name)
    is_by_folder = path.name == _WHOLE and len(path.parts) > 1 and path.parent.name != "onnx"
    return path.parent.name if is_by_folder else path.name


def _belonging(graph: HubFile, files: Sequence[HubFile]) -> list[HubFile]:
    """Files with the graph's weights, and settings beside it or in a folder above."""
    path = PurePosixPath(graph.name)
    folders = {str(folder) for folder in path.parents}
    found = []
    for file in files:
        place = PurePosixPath(file.name)
        rest = file.name.removeprefix(graph.name)
        is_data = rest != file.name and rest.startswith(("_data", ".data"))
        is_data |= file.name == f"{graph.name[: -len(SUFFIX)]}.data"
        if is_data or (place.name in _SETTINGS and str(place.parent) in folders):
            found.append(file)
    return sorted(found, key=lambda file: file.name)
