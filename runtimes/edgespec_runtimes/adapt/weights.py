"""Reads the weights of a GGUF model as float32, and writes it with others.

Names, shapes and types stay as they are, and so does all else in the file but the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from edgespec_runtimes.enlarge.gguf.packing import pack_head, pack_pair, read_bytes
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.layout import TENSOR_TYPES, TensorType, padded

NAME = "general.name"
WRITABLE = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"})
"""Types that the gguf package quantises to; a tensor of another type becomes Q8_0."""
_Q8_0 = next(kind for kind in TENSOR_TYPES.values() if kind.name == "Q8_0")

Weights = Mapping[str, np.ndarray]
"""Float32 by name, in PyTorch's order of dimensions."""


def read(header: GgufFile) -> dict[str, np.ndarray]:
    """All weights of a model. Raises OSError, and ModelError if a file became shorter."""
    weights = {}
    for part, path in enumerate(header.paths):
        with path.open("rb") as file:
            for tensor in header.tensors:
                if tensor.file_index == part:
                    raw = np.frombuffer(read_bytes(file, tensor.offset, tensor.nbytes), np.uint8)
                    shape = tensor.shape[::-1]
                    rows = raw.reshape(*shape[:-1], -1)
                    values = dequantize(rows, GGMLQuantizationType(tensor.type.code))
                    weights[tensor.name] = np.array(values, np.float32).reshape(shape)
    return weights


def write(header: GgufFile, weights: Weights, out: Path, name: str) -> None:
    """Write `out`: the model of `header`, called `name`, with these weights.

    Raises OSError, and ModelError if the source became shorter.
    """
    with header.path.open("rb") as source:
        pairs = [
            read_bytes(source, entry.start, entry.end - entry.start)
            for key, entry in header.entries.items()
            if key != NAME and not key.startswith("split.")
        ]
    pairs.insert(min(1, len(pairs)), pack_pair(NAME, name))
    kinds = {tensor.name: _kind(tensor.type) for tensor in header.tensors}
    described = [(tensor.name, kinds[tensor.name], tensor.shape) for tensor in header.tensors]
    with out.open("wb") as file:
        file.write(pack_head(pairs, described, header.alignment))
        for tensor in header.tensors:
            kind = kinds[tensor.name]
            packed = quantize(weights[tensor.name], GGMLQuantizationType(kind.code)).tobytes()
            file.write(packed.ljust(padded(len(packed), header.alignment), b"\0"))


def _kind(kind: TensorType) -> TensorType:
    return kind if kind.name in WRITABLE else _Q8_0
