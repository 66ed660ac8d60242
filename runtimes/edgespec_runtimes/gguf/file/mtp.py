"""Validates prediction layers (multi-token prediction, MTP) in a target's own file.

Reads only the header. llama.cpp's graphs of such layers abort if a tensor is missing, so required
tensors are listed here and in the table of architectures.
"""

from __future__ import annotations

from dataclasses import replace

from edgespec.errors import ModelError
from edgespec_runtimes.gguf.file.architectures import architecture
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.heads import HeadShape
from edgespec_runtimes.gguf.file.layout import EMBEDDINGS, OUTPUT

N_LAYERS = "nextn_predict_layers"
_ALWAYS_NEEDED = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")


def has_layers(header: GgufFile) -> bool:
    """True if the file has tensors of prediction layers; some files only have their number."""
    return any(".nextn.eh_proj." in name for name in header.tensors_by_name)


def obstacle(header: GgufFile) -> str | None:
    """Reason why the file's prediction layers cannot be used; None if they can."""
    n_layers, known = header.integer(header.key(N_LAYERS), 0), architecture(header.architecture)
    if not n_layers or not has_layers(header):
        return "its file has none"
    if known.own_layer is None:
        return f"those of the architecture {header.architecture} are not run"
    if n_layers != 1:
        return f"it has {n_layers}, and one is run"
    unfit = header.key(known.own_layer_without)
    if unfit in header.metadata:
        return f"llama.cpp does not compute them with {unfit}"
    names = (*_ALWAYS_NEEDED, *known.own_layer)
    wanted = [EMBEDDINGS, *(f"{_prefix(header)}{name}.weight" for name in names)]
    missing = [name for name in wanted if name not in header.tensors_by_name]
    return f"{missing[0]} is missing" if missing else None


def can_guess(header: GgufFile) -> bool:
    """True if the file has a usable prediction layer."""
    return obstacle(header) is None


def own_shape(header: GgufFile) -> HeadShape:
    """Tensors and states that a target's prediction layer uses. Raises ModelError if unusable."""
    if reason := obstacle(header):
        raise ModelError(
            f"the layers for guessing (MTP) of {header.path} cannot be used ({reason}): name "
            "another draft"
        )
    prefix, tensors = _prefix(header), header.tensors_by_name
    embeddings = tensors.get(f"{prefix}nextn.embed_tokens.weight") or tensors[EMBEDDINGS]
    outputs = (f"{prefix}nextn.shared_head_head.weight", OUTPUT, EMBEDDINGS)
    output = next(tensors[name] for name in outputs if name in tensors)
    apart = {EMBEDDINGS, OUTPUT, embeddings.name, output.name}
    own = [
        tensor
        for tensor in header.tensors
        if (tensor.name.startswith(prefix) or not tensor.name.startswith("blk."))
        and tensor.name not in apart
    ]
    layers = (header.n_layers - 1,)  # the input of the layer after the target's last one
    return HeadShape(layers, header.embedding_length, embeddings, output, own=tuple(own))


def own_part(header: GgufFile, shape: HeadShape) -> GgufFile:
    """The file's header with only the tensors of its prediction layer."""
    return replace(header, tensors=shape.own)


def skipped(header: GgufFile) -> frozenset[str]:
    """Names of the prediction layer's tensors, which are not loaded with the target."""
    if not can_guess(header):
        return frozenset()
    return frozenset(t.name for t in own_shape(header).own if t.name.startswith(_prefix(header)))


def _prefix(header: GgufFile) -> str:
    return f"blk.{header.n_layers - 1}."
