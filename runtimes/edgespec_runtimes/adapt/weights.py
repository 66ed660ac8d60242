"""Reads the weights of a GGUF model as float32, and writes it with others.

Names, shapes and types stay as they are, and so does all else in the file but the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from edgespec_runtimes.enlarge.gguf.packing import NewModel, copied_pairs, pack_pair, read_bytes
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.layout import TENSOR_TYPES, TensorType

NAME = "general.name"
WRITABLE = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"})
"""Types that the gguf package quantises to; a tensor of another type becomes Q8_0."""
_Q8_0 = next(kind for kind in TENSOR_TYPES.values() if kind.name == "Q8_0")

Weights = Mapping[str, np.ndarray]
"""Float32 by name, in PyTorch's order of dimensions."""


def read(header: GgufFile) -> dict[str, np.ndarray]:
    """All weights of a model. Raises OSError, and ModelError if a file became shorter."""
    weights = {}
    for tensor in header.tensors:
        stored = read_bytes(header.paths[tensor.file_index], tensor.offset, tensor.nbytes)
        shape = tensor.shape[::-1]
        rows = np.frombuffer(stored, np.uint8).reshape(*shape[:-1], -1)
        values = dequantize(rows, GGMLQuantizationType(tensor.type.code))
        weights[tensor.name] = np.array(values, np.float32).reshape(shape)
    return weights


def write(header: GgufFile, weights: Weights, out: Path, name: str) -> None:
    """Write `out`: the model of `header`, called `name`, with these weights.

    Raises EdgespecError where that fails, and ModelError if the source became shorter.
    """
    pairs = copied_pairs(header, {NAME: pack_pair(NAME, name)})
    kinds = [_kind(tensor.type) for tensor in header.tensors]
    described = [(t.name, kind, t.shape) for t, kind in zip(header.tensors, kinds, strict=True)]
    contents = (
        [quantize(weights[tensor], GGMLQuantizationType(kind.code)).tobytes()]
        for tensor, kind, _ in described
    )
    NewModel(pairs, described, header.alignment).write(out, contents)


def _kind(kind: TensorType) -> TensorType:
    return kind if kind.name in WRITABLE else _Q8_0
