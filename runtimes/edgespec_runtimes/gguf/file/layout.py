"""Constants of the GGUF format: type numbers and sizes. Reads nothing."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, IntEnum, auto

MAGIC = b"GGUF"
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
"""Names of the matrices outside the layers; a model without OUTPUT multiplies with EMBEDDINGS."""
PER_LAYER_EMBEDDINGS = "per_layer_token_embd.weight"
"""Name of the table of what layers add for a token, by its id."""
BY_TOKEN = (EMBEDDINGS, OUTPUT, PER_LAYER_EMBEDDINGS)
"""Names of the matrices with a row for each token."""
MADE_FOR, NO_TOKENIZER = "edgespec.draft.vocabulary", "none"
"""Metadata key of drafts without a tokenizer, and the tokenizer that they name."""
DEFAULT_ALIGNMENT = 32
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


class Kernels(Flag):
    """Kinds of ggml's CPU kernels that multiply with a type, by which rows round alike or not."""

    ONE = 0
    """A single row and several by one kernel."""
    DIFFER = auto()
    """One kernel for single rows and another one for several, on every processor."""
    MAY_DIFFER = auto()
    """The same on some processors, which is tested."""
    TILED = auto()
    """Several rows in tiles."""
    NONE = auto()
    """Not at all: no weights have such a type."""


ONE, DIFFER, MAY_DIFFER = Kernels.ONE, Kernels.DIFFER, Kernels.MAY_DIFFER
TILED, NONE = Kernels.TILED, Kernels.NONE


@dataclass(frozen=True, slots=True)
class TensorType:
    """An element type, of which `block_size` elements take `block_bytes`."""

    code: int
    name: str
    block_size: int
    block_bytes: int
    kernels: Kernels = ONE
    scales: tuple[int, int] | None = None
    """Begin and end of the scales in a block, without which its values are zero, if known."""
    nests: tuple[tuple[str, int], ...] = ()
    """Types that the upper bits of codes can have, the largest first, each with the bytes that the
    lower ones of 256 weights take then."""

    def nbytes(self, n_elements: int) -> int:
        return n_elements // self.block_size * self.block_bytes


_Q8_0_NESTS = (("Q4_K", 144), ("Q3_K", 184), ("Q2_K", 216))
TENSOR_TYPES: Mapping[int, TensorType] = {
    kind.code: kind
    for kind in (
        TensorType(0, "F32", 1, 4, DIFFER),
        TensorType(1, "F16", 1, 2, DIFFER),
        TensorType(2, "Q4_0", 32, 18, MAY_DIFFER, (0, 2)),
        TensorType(3, "Q4_1", 32, 20, MAY_DIFFER, (0, 4)),
        TensorType(6, "Q5_0", 32, 22, MAY_DIFFER, (0, 2)),
        TensorType(7, "Q5_1", 32, 24, ONE, (0, 4)),
        TensorType(8, "Q8_0", 32, 34, MAY_DIFFER, (0, 2), _Q8_0_NESTS),
        TensorType(9, "Q8_1", 32, 36, NONE),
        TensorType(10, "Q2_K", 256, 84, TILED, (80, 84)),
        TensorType(11, "Q3_K", 256, 110, TILED, (108, 110)),
        TensorType(12, "Q4_K", 256, 144, MAY_DIFFER | TILED, (0, 4), (("Q2_K", 88),)),
        TensorType(13, "Q5_K", 256, 176, TILED, (0, 4), (("Q2_K", 120),)),
        TensorType(14, "Q6_K", 256, 210, MAY_DIFFER | TILED, (208, 210), (("Q3_K", 122),)),
        TensorType(15, "Q8_K", 256, 292, NONE),
        TensorType(16, "IQ2_XXS", 256, 66, TILED),
        TensorType(17, "IQ2_XS", 256, 74, TILED),
        TensorType(18, "IQ3_XXS", 256, 98, TILED),
        TensorType(19, "IQ1_S", 256, 50, TILED),
        TensorType(20, "IQ4_NL", 32, 18, MAY_DIFFER, (0, 2)),
        TensorType(21, "IQ3_S", 256, 110, TILED, (0, 2)),
        TensorType(22, "IQ2_S", 256, 82, TILED),
        TensorType(23, "IQ4_XS", 256, 136, TILED, (0, 2)),
        TensorType(24, "I8", 1, 1, NONE),
        TensorType(25, "I16", 1, 2, NONE),
        TensorType(26, "I32", 1, 4, NONE),
        TensorType(27, "I64", 1, 8, NONE),
        TensorType(28, "F64", 1, 8, NONE),
        TensorType(29, "IQ1_M", 256, 56, TILED),
        TensorType(30, "BF16", 1, 2, DIFFER),
        TensorType(34, "TQ1_0", 256, 54, ONE, (52, 54)),
        TensorType(35, "TQ2_0", 256, 66, ONE, (64, 66)),
        TensorType(39, "MXFP4", 32, 17, MAY_DIFFER),
        TensorType(40, "NVFP4", 64, 36),
        TensorType(41, "Q1_0", 128, 18),
        TensorType(42, "Q2_0", 64, 18),
    )
}
"""Values of enum ggml_type with the sizes of ggml-common.h; gaps are removed types."""
KINDS: Mapping[str, TensorType] = {kind.name: kind for kind in TENSOR_TYPES.values()}
"""The same by name."""


def types_with(kernels: Kernels) -> frozenset[str]:
    """Names of the types with kernels of this sort."""
    return frozenset(name for name, kind in KINDS.items() if kernels in kind.kernels)


U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
_SIZED = [kind for kind in ValueType if kind not in (ValueType.STRING, ValueType.ARRAY)]
SCALARS: Mapping[ValueType, struct.Struct] = {
    kind: struct.Struct(f"<{letter}") for kind, letter in zip(_SIZED, "BbHhIif?Qqd", strict=True)
}
"""Binary layouts of the values of fixed size."""


def padded(n_bytes: int, alignment: int) -> int:
    """`n_bytes` rounded up to the next multiple of `alignment`."""
    return -(-n_bytes // alignment) * alignment
