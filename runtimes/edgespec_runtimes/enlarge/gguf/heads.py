"""Writes a head that guesses for an enlarged target what another guesses for its source.

The enlarged target's hidden states are copies of the source's, and the layers between are silent:
the head reads the first copy, where the same layer begins. It gets the source's embeddings, since
the enlarged ones are wider. Loads no model.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgespec.errors import ModelError
from edgespec.files.unfinished import unfinished_file
from edgespec_runtimes.enlarge.gguf.disk import check_room, writing
from edgespec_runtimes.enlarge.gguf.enlarge import spread
from edgespec_runtimes.enlarge.gguf.packing import pack_head, pack_pair, pack_string, read_bytes
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry, ValueType, read_header
from edgespec_runtimes.gguf.file.heads import EMBEDDINGS, OUTPUT, HeadShape, head_shape
from edgespec_runtimes.gguf.file.layout import padded

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
    described = [(tensor.name, tensor.type, _widened(tensor, factor).shape) for _, tensor in own]
    packed = pack_head(list(_pairs(header, shape, lender, target)), described, header.alignment)
    size = len(packed) + sum(factor * tensor.nbytes for _, tensor in own)
    check_room(out, size)
    with writing(out), unfinished_file(out) as file, ExitStack() as stack:
        file.write(packed)
        for of, tensor in own:
            part = stack.enter_context(of.paths[tensor.file_index].open("rb"))
            content = _content(part, tensor, shape, factor)
            file.write(content.ljust(padded(len(content), header.alignment), b"\0"))


def _widened(tensor: TensorEntry, factor: int) -> TensorEntry:
    if tensor.name not in FUSING:
        return tensor
    return replace(tensor, shape=(factor * tensor.shape[0], *tensor.shape[1:]))


def _pairs(
    header: GgufFile, shape: HeadShape, source: GgufFile, enlarged: GgufFile
) -> Iterator[bytes]:
    """Packed metadata: the layers where those of the source begin, and their width."""
    begins: dict[int, int] = {}
    for index, copy in enumerate(spread(source.n_layers, enlarged.n_layers)):
        begins.setdefault(copy.source, index)
    layers, width = header.key("target_layers"), header.key("target_hidden_size")
    with header.path.open("rb") as file:
        for key, entry in header.entries.items():
            if key not in (layers, width):
                yield read_bytes(file, entry.start, entry.end - entry.start)
    numbers = [begins[layer] for layer in shape.layers]
    kind = struct.pack("<IIQ", ValueType.ARRAY, ValueType.INT32, len(numbers))
    yield pack_string(layers) + kind + struct.pack(f"<{len(numbers)}i", *numbers)
    yield pack_pair(width, enlarged.embedding_length)


def _content(file: BinaryIO, tensor: TensorEntry, shape: HeadShape, factor: int) -> bytes:
    """The tensor's bytes; zeros meet all but the first copy of a hidden state."""
    raw = read_bytes(file, tensor.offset, tensor.nbytes)
    if tensor.name not in FUSING or factor == 1:
        return raw
    runs = np.frombuffer(raw, np.uint8).reshape(-1, 1, tensor.type.nbytes(shape.n_values))
    copies = np.zeros((len(runs), factor, runs.shape[-1]), np.uint8)
    copies[:, :1] = runs
    return copies.tobytes()
