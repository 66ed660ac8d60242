"""Packs weights in place into the layout that ggml's CPU kernels multiply fastest.

Knows nothing of files, slots and models.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from dataclasses import dataclass

from edgespec.concurrency.owning import Closeable
from edgespec_runtimes.gguf.file.layout import TENSOR_TYPES
from edgespec_runtimes.gguf.kernels.batch_invariance import is_invariant_in
from edgespec_runtimes.gguf.llama import abi, ggml

BUFFER_TYPE = "CPU_REPACK"
"""The buffer type for packing, which keeps the size of weights and their groups of rows. Others
(AMX) are not used."""
PIECE_BYTES = 1 << 20
"""Bytes packed at once, through a copy; ggml logs a line for each piece."""
PIECES = 128
"""Pieces in one context of ggml, which has room for some dozens of tensors more."""
GROUP_ROWS = 16
"""Most rows that are interleaved; a piece has whole groups."""
_BUFFER_BYTES = 64
"""Size of the buffer; for size zero, ggml creates one that cannot pack."""


def packs_invariantly(kind: int, n_in: int, n_out: int) -> bool:
    """True if weights [n_out, n_in] can be packed in place, and products with them are then batch
    invariant."""
    buffer_type = ggml.packing_buffer_type(kind, n_in, n_out)
    return (
        buffer_type is not None
        and ggml.buffer_type_name(buffer_type) == BUFFER_TYPE
        and is_invariant_in(buffer_type, kind)
    )


@dataclass(frozen=True, slots=True)
class BufferFields:
    """The fields of a ggml_tensor by which ggml chooses its kernel."""

    buffer: int | None
    extra: int | None

    @classmethod
    def of(cls, tensor: int) -> BufferFields:
        fields = abi.GgmlTensor.from_address(tensor)
        return cls(fields.buffer, fields.extra)

    def write_to(self, tensor: int) -> None:
        fields = abi.GgmlTensor.from_address(tensor)
        fields.buffer, fields.extra = self.buffer, self.extra


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor over the rows that are packed at once."""

    tensor: int
    n_rows: int
    row_bytes: int


class Packer(Closeable):
    """Packs weights, and provides the buffer fields of packed tensors.

    Call `close` after the last computation with packed weights.
    """

    def __init__(self) -> None:
        self._owned = ExitStack()
        self._context = ggml.new_context(self._owned)
        self._buffer = 0
        self._fields: dict[tuple[int, int, int], BufferFields] = {}
        self._pieces: dict[tuple[int, int], _Piece] = {}
        self._copy = ctypes.create_string_buffer(1)

    def buffer_fields(self, kind: int, n_in: int, n_out: int) -> BufferFields:
        """Buffer fields of a tensor with weights [n_out, n_in] that are packed."""
        shape = kind, n_in, n_out
        if shape not in self._fields:
            self._fields[shape] = self._new_fields(*shape)
        return self._fields[shape]

    def pack(self, address: int, kind: int, n_in: int, n_out: int) -> None:
        """Pack weights in place; their shape must have buffer fields."""
        piece = self._piece(kind, n_in)
        fields = abi.GgmlTensor.from_address(piece.tensor)
        for row in range(0, n_out, piece.n_rows):
            n_rows = min(piece.n_rows, n_out - row)
            begin, size = address + row * piece.row_bytes, n_rows * piece.row_bytes
            ctypes.memmove(self._copy, begin, size)
            fields.ne[1], fields.data = n_rows, begin
            ggml.set_tensor(piece.tensor, self._copy, size)

    def close(self) -> None:
        self._owned.close()
        self._fields.clear()
        self._pieces.clear()

    def _new_fields(self, kind: int, n_in: int, n_out: int) -> BufferFields:
        if not self._buffer:
            buffer_type = ggml.packing_buffer_type(kind, n_in, n_out)
            assert buffer_type is not None, "weights that are not packed have no such fields"
            self._buffer = ggml.new_buffer(self._owned, buffer_type, _BUFFER_BYTES)
        with ExitStack() as owned:
            tensor = ggml.new_tensor(ggml.new_context(owned), kind, n_in, n_out)
            ggml.place(tensor, self._buffer, ctypes.addressof(self._copy))
            return BufferFields.of(tensor)

    def _piece(self, kind: int, n_in: int) -> _Piece:
        if (kind, n_in) not in self._pieces:
            if self._pieces and not len(self._pieces) % PIECES:
                self._context = ggml.new_context(self._owned)
            row_bytes = TENSOR_TYPES[kind].nbytes(n_in)
            n_rows = GROUP_ROWS * max(1, PIECE_BYTES // (GROUP_ROWS * row_bytes))
            if n_rows * row_bytes > len(self._copy):
                self._copy = ctypes.create_string_buffer(n_rows * row_bytes)
            tensor = ggml.new_tensor(self._context, kind, n_in, n_rows)
            ggml.place(tensor, self._buffer, ctypes.addressof(self._copy))
            self._pieces[kind, n_in] = _Piece(tensor, n_rows, row_bytes)
        return self._pieces[kind, n_in]
