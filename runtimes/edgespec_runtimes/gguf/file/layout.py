"""Constants of the GGUF format: type numbers and sizes. Reads nothing."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"GGUF"
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
"""Names of the matrices outside the layers; a model without OUTPUT multiplies with EMBEDDINGS."""
DEFAULT_ALIGNMENT = 32
MAX_NAME_BYTES = 63
MAX_DIMENSIONS = 4


class ValueType(IntEnum):
    """Types of metadata values, with their numbers in the format."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


@dataclass(frozen=True, slots=True)
class TensorType:
    """An element type, of which `block_size` elements take `block_bytes`."""

    code: int
    name: str
    block_size: int
    block_bytes: int

    def nbytes(self, n_elements: int) -> int:
        return n_elements // self.block_size * self.block_bytes


TENSOR_TYPES: Mapping[int, TensorType] = {
    code: TensorType(code, name, block_size, block_bytes)
    for code, name, block_size, block_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
        (42, "Q2_0", 64, 18),
    )
}
"""Values of enum ggml_type with the sizes of ggml-common.h; gaps are removed types."""

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
SCALARS = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}
"""Binary layouts of the values of fixed size."""


def padded(n_bytes: int, alignment: int) -> int:
    """`n_bytes` rounded up to the next multiple of `alignment`."""
    return -(-n_bytes // alignment) * alignment
