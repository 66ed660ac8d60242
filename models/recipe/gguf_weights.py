"""Reads the weights of a GGUF model as float32, and writes the model with new weights.

Names, shapes and types of tensors, and all metadata except the model's name, are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from edgespec_runtimes.enlarge.gguf.gguf_writer import NewModel, copied_pairs, pack_pair, read_bytes
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.layout import KINDS, TensorType

NAME = "general.name"
WRITABLE = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"})
"""Types that the gguf package can write; tensors of other types become Q8_0."""

Weights = Mapping[str, np.ndarray]
"""Float32 arrays by name, in PyTorch's order of dimensions."""


def read(header: GgufFile) -> dict[str, np.ndarray]:
    """Read all weights of a model. Raises OSError, and ModelError if a file was truncated."""
    weights = {}
    for tensor in header.tensors:
        stored = read_bytes(header.paths[tensor.file_index], tensor.offset, tensor.nbytes)
        shape = tensor.shape[::-1]
        rows = np.frombuffer(stored, np.uint8).reshape(*shape[:-1], -1)
        values = dequantize(rows, GGMLQuantizationType(tensor.type.code))
        weights[tensor.name] = np.array(values, np.float32).reshape(shape)
    return weights


def write(header: GgufFile, weights: Weights, out: Path, name: str) -> None:
    """Write the model of `header` with `weights` to `out` under `name`.

    Raises EdgespecError if that fails, and ModelError if the source was truncated.
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
    return kind if kind.name in WRITABLE else KINDS["Q8_0"]
