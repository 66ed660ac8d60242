"""Writes a head that guesses for an enlarged target what another guesses for its source.

The enlarged target's hidden states are copies of the source's, and the layers between are silent:
the head reads the first copy, where the same layer begins. It gets the source's embeddings, since
the enlarged ones are wider. Loads no model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from edgespec.errors import ModelError
from edgespec_runtimes.enlarge.gguf.enlarge import spread
from edgespec_runtimes.enlarge.gguf.gguf_writer import (
    NewModel,
    copied_pairs,
    pack_array,
    pack_pair,
    read_bytes,
)
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry, ValueType, read_header
from edgespec_runtimes.gguf.file.heads import HeadShape, head_shape
from edgespec_runtimes.gguf.file.layout import EMBEDDINGS, OUTPUT

FUSING = ("fc.weight", "enc.output_norm.weight")
"""Tensors that meet hidden states of the target."""


def fit_head(head: Path, source: Path, enlarged: Path, out: Path) -> None:
    """Write to `out` the `head` of `source` for `enlarged`, which was made from that model. Raises
    ModelError, and EdgespecError when the disk is too small or fails."""
    header, lender, target = (read_header(path) for path in (head, source, enlarged))
    shape = head_shape(header, lender)
    factor, rest = divmod(target.embedding_length, shape.n_values)
    if rest or target.n_layers < lender.n_layers:
        raise ModelError(f"{enlarged} is not {source}, enlarged: its head would not fit")
    lent = {EMBEDDINGS: shape.embeddings, OUTPUT: shape.output}
    own = [(header, tensor) for tensor in header.tensors]
    own += [(lender, replace(tensor, name=name)) for name, tensor in lent.items() if tensor]
    described = [
        (t.name, t.type, (t.shape[0] * (factor if t.name in FUSING else 1), *t.shape[1:]))
        for _, t in own
    ]
    pairs = copied_pairs(header, _changed(header, shape, lender, target))
    contents = ([_content(of, tensor, shape, factor)] for of, tensor in own)
    NewModel(pairs, described, header.alignment).write(out, contents)


def _changed(
    header: GgufFile, shape: HeadShape, source: GgufFile, enlarged: GgufFile
) -> dict[str, bytes]:
    """Packed metadata by key: the layers where those of the source begin, and their width."""
    begins: dict[int, int] = {}
    for index, copy in enumerate(spread(source.n_layers, enlarged.n_layers)):
        begins.setdefault(copy.source, index)
    layers, width = header.key("target_layers"), header.key("target_hidden_size")
    numbers = [begins[layer] for layer in shape.layers]
    return {
        layers: pack_array(layers, ValueType.INT32, numbers),
        width: pack_pair(width, enlarged.embedding_length),
    }


def _content(header: GgufFile, tensor: TensorEntry, shape: HeadShape, factor: int) -> bytes:
    """The tensor's bytes; zeros meet all but the first copy of a hidden state."""
    raw = read_bytes(header.paths[tensor.file_index], tensor.offset, tensor.nbytes)
    if tensor.name not in FUSING or factor == 1:
        return raw
    runs = np.frombuffer(raw, np.uint8).reshape(-1, 1, tensor.type.nbytes(shape.n_values))
    copies = np.zeros((len(runs), factor, runs.shape[-1]), np.uint8)
    copies[:, :1] = runs
    return copies.tobytes()
