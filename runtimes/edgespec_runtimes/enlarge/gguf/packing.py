"""Packs what precedes the weights of a GGUF file: preamble, metadata and tensor descriptions.

Knows the format and nothing of what a model computes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import BinaryIO

from edgespec.errors import ModelError
from edgespec_runtimes.gguf.file.layout import MAGIC, TensorType, ValueType, padded

CHUNK_BYTES = 8 << 20
"""Bytes of weights in memory at a time."""
Description = tuple[str, TensorType, tuple[int, ...]]
"""Name, type and shape of a tensor, in ggml's order of dimensions."""


def pack_head(pairs: Sequence[bytes], tensors: Sequence[Description], alignment: int) -> bytes:
    """All bytes before the weights, padded; `pairs` are packed metadata.

    The weights follow in the order of `tensors`, each padded to `alignment`.
    """
    descriptions, offset = [], 0
    for name, kind, shape in tensors:
        n_dims = len(shape)
        place = struct.pack(f"<I{n_dims}QIQ", n_dims, *shape, kind.code, offset)
        descriptions.append(pack_string(name) + place)
        offset += padded(kind.nbytes(math.prod(shape)), alignment)
    preamble = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head = b"".join([preamble, *pairs, *descriptions])
    return head.ljust(padded(len(head), alignment), b"\0")


def pack_pair(key: str, value: int | str) -> bytes:
    if isinstance(value, str):
        return pack_string(key) + struct.pack("<I", ValueType.STRING) + pack_string(value)
    return pack_string(key) + struct.pack("<II", ValueType.UINT32, value)


def pack_string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def read_bytes(file: BinaryIO, offset: int, n_bytes: int) -> bytes:
    """So many bytes of a source. Raises ModelError if it ends before."""
    file.seek(offset)
    raw = file.read(n_bytes)
    if len(raw) < n_bytes:
        raise ModelError(f"{file.name} became shorter while it was read: copy it again")
    return raw
