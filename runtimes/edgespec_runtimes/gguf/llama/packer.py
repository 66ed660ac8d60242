"""Packs weights in place as ggml's CPU code multiplies them fastest, and marks tensors as packed.

Tries, too, what rounds alike in packed form however many rows are multiplied. Knows nothing of
files, slots and models.
"""

from __future__ import annotations

import ctypes
import functools
import math
from contextlib import ExitStack
from dataclasses import dataclass

from edgespec.concurrency.owning import Closeable
from edgespec_runtimes.gguf.llama import abi, ggml

BUFFER_TYPE = "CPU_REPACK"
"""Whose weights take as many bytes packed as before, in the same groups of rows. Others (AMX's) are
left to models that stay in memory."""
PIECE_BYTES = 1 << 20
"""Packed at once, by way of a copy; ggml writes a line of log for each."""
GROUP_ROWS = 16
"""Rows that are interleaved, at most: a piece has whole groups."""
_BUFFER_BYTES = 64
"""Any but zero, for which ggml makes a buffer that knows nothing of packing."""

TRIAL_IN, TRIAL_OUT, TRIAL_ROWS = 512, 72, 25
"""Weights and rows that show whether several rows round as one does: enough for every kernel."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a ggml_tensor says of where it lies: by it ggml chooses the code that computes it."""

    buffer: int | None
    extra: int | None

    @classmethod
    def of(cls, tensor: int) -> Mark:
        fields = abi.GgmlTensor.from_address(tensor)
        return cls(fields.buffer, fields.extra)

    def put_on(self, tensor: int) -> None:
        fields = abi.GgmlTensor.from_address(tensor)
        fields.buffer, fields.extra = self.buffer, self.extra


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of weights that are packed at once, as a tensor."""

    tensor: int
    n_rows: int
    row_bytes: int


class Packer(Closeable):
    """Packs weights, and says how tensors are marked that hold them: until `close`, which must come
    after the last computation with one."""

    def __init__(self) -> None:
        self._owned = ExitStack()
        self._context = ggml.new_context(self._owned)
        self._buffer = 0
        self._marks: dict[tuple[int, int, int], Mark | None] = {}
        self._pieces: dict[tuple[int, int], _Piece] = {}
        self._copy = ctypes.create_string_buffer(1)

    def mark(self, kind: int, n_in: int, n_out: int) -> Mark | None:
        """Of weights [n_out, n_in] of a ggml type, once they are packed; None if they stay as they
        are."""
        shape = kind, n_in, n_out
        if shape not in self._marks:
            self._marks[shape] = self._new_mark(*shape)
        return self._marks[shape]

    def pack(self, address: int, kind: int, n_in: int, n_out: int) -> None:
        """Pack weights for which there is a mark, in place."""
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
        self._marks.clear()
        self._pieces.clear()

    def _new_mark(self, kind: int, n_in: int, n_out: int) -> Mark | None:
        buffer_type = ggml.packing_buffer_type(kind, n_in, n_out)
        if buffer_type is None or ggml.buffer_type_name(buffer_type) != BUFFER_TYPE:
            return None
        if not self._buffer:
            self._buffer = ggml.new_buffer(self._owned, buffer_type, _BUFFER_BYTES)
        with ExitStack() as owned:
            tensor = ggml.new_tensor(ggml.new_context(owned), kind, n_in, n_out)
            ggml.place(tensor, self._buffer, ctypes.addressof(self._copy))
            return Mark.of(tensor)

    def _piece(self, kind: int, n_in: int) -> _Piece:
        if (kind, n_in) not in self._pieces:
            row_bytes = ggml.row_bytes(kind, n_in)
            n_rows = GROUP_ROWS * max(1, PIECE_BYTES // (GROUP_ROWS * row_bytes))
            if n_rows * row_bytes > len(self._copy):
                self._copy = ctypes.create_string_buffer(n_rows * row_bytes)
            tensor = ggml.new_tensor(self._context, kind, n_in, n_rows)
            ggml.place(tensor, self._buffer, ctypes.addressof(self._copy))
            self._pieces[kind, n_in] = _Piece(tensor, n_rows, row_bytes)
        return self._pieces[kind, n_in]


def is_uneven(kind: int, n_in: int, n_out: int) -> bool:
    """Whether weights [n_out, n_in], packed as models in memory are, multiply several rows with
    another rounding than one."""
    buffer_type = ggml.packing_buffer_type(kind, n_in, n_out)
    return buffer_type is not None and not _rounds_alike(kind, buffer_type)


@functools.cache
def _rounds_alike(kind: int, buffer_type: int) -> bool:
    """Tried, for of the kernels for one row and for several some sum up otherwise."""
    weights = ggml.quantised(kind, _values(TRIAL_OUT * TRIAL_IN, 0.73), TRIAL_IN)
    rows = _values(TRIAL_ROWS * TRIAL_IN, 0.37)
    each = [rows[i : i + TRIAL_IN] for i in range(0, len(rows), TRIAL_IN)]
    alone = [ggml.product(buffer_type, kind, weights, row, TRIAL_IN) for row in each]
    return b"".join(alone) == ggml.product(buffer_type, kind, weights, rows, TRIAL_IN)


def _values(n: int, step: float) -> list[float]:
    """Numbers between -1 and 1 that repeat nowhere."""
    return [math.sin(step * i + 0.01 * (i // TRIAL_IN)) for i in range(n)]
