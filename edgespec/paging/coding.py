"""Half-precision weights in pieces, each coded by itself: bytes in, bytes out, bit for bit.

Knows zstandard and what of such weights can be made smaller; no file, and not when it pays.

The bytes with sign and exponent take few of their values, those with the rest of the mantissa all
of them. So a piece is coded plane by plane, every second byte and the others: each as a zstd frame
with a checksum, or as it is where that is no larger, which only copies.

    bytes of the low plane, of the high one (uint32), checksum of a low plane that lies as it is
    (uint64), the low plane, the high plane, zeros up to a multiple of 8
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgespec import extras

if TYPE_CHECKING:
    import zstandard

Bytes: TypeAlias = NDArray[np.uint8]

PIECE_BYTES = 256 << 10
"""Of weights: two of zstd's largest blocks, and little enough to stay in a core's cache."""
MOST_CODED_BYTES = PIECE_BYTES + 1024
"""What cannot be made smaller grows by zstd's headers."""
EXTRA = "coded"
_HEADER = struct.Struct("<IIQ")
_WORD = 8


def check_installed() -> None:
    """Raises UsageError with the command that installs what coding needs."""
    extras.find("zstandard", EXTRA, "coded weights need zstandard")


class Encoder:
    """Codes pieces, one after the other."""

    def __init__(self) -> None:
        with extras.needed(EXTRA, "coded weights need zstandard"):
            import zstandard
        # Huffman codes and hardly a search for repetitions: exponents have none but by chance. Of
        # BF16, level 1 finds those, makes 0.693 of the bytes instead of 0.675, and takes 1.4 times
        # as long to decode.
        parameters = zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST,
            window_log=17,
            hash_log=6,
            chain_log=6,
            search_log=1,
            min_match=7,
            target_length=0,
            write_content_size=True,
            write_checksum=True,
        )
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)

    def encode(self, piece: Bytes) -> bytes:
        """`piece` has an even number of bytes, and at most PIECE_BYTES."""
        high, low = self._compressor.compress(piece[1::2].tobytes()), piece[0::2].copy()
        checksum, coded_low = _sum(low), self._compressor.compress(low.tobytes())
        if len(coded_low) >= len(low):
            coded_low = low.tobytes()
        coded = _HEADER.pack(len(coded_low), len(high), checksum) + coded_low + high
        return coded + bytes(-len(coded) % _WORD)


class Decoder:
    """Decodes pieces into memory that is given, one after the other; others may compute meanwhile.

    Not for several threads at once.
    """

    def __init__(self) -> None:
        with extras.needed(EXTRA, "coded weights need zstandard"):
            import zstandard
        self._zstandard = zstandard
        self._decompressor: zstandard.ZstdDecompressor = zstandard.ZstdDecompressor(
            max_window_size=PIECE_BYTES
        )
        self._high, self._low = (memoryview(bytearray(PIECE_BYTES // 2)) for _ in range(2))

    def decode(self, coded: memoryview, piece: Bytes) -> bool:
        """Fill `piece`. False for what is damaged, or of a piece of another size."""
        if len(coded) < _HEADER.size:
            return False
        low_bytes, high_bytes, checksum = _HEADER.unpack_from(coded)
        coded = coded[_HEADER.size :]
        if low_bytes + high_bytes > len(coded):
            return False
        n = len(piece) // 2
        high, low = self._high[:n], coded[:low_bytes]
        if low_bytes == n:
            is_whole = _sum(np.frombuffer(low, np.uint8)) == checksum
        else:
            low = self._low[:n]
            is_whole = self._decompress(coded[:low_bytes], low)
        if not is_whole or not self._decompress(coded[low_bytes : low_bytes + high_bytes], high):
            return False
        weights = piece.view("<u2")
        np.multiply(np.frombuffer(high, np.uint8), 256, out=weights, dtype=np.uint16)
        np.bitwise_or(weights, np.frombuffer(low, np.uint8), out=weights)
        return True

    def _decompress(self, frame: memoryview, plane: memoryview) -> bool:
        """Into memory that is there: a frame says its length, and a hostile one any."""
        try:
            told = self._zstandard.get_frame_parameters(frame)
            if told.content_size != len(plane) or not told.has_checksum:
                return False
            with self._decompressor.stream_reader(frame) as source:
                return source.readinto(plane) == len(plane) and not source.read(1)
        except self._zstandard.ZstdError:
            return False


def _sum(plane: Bytes) -> int:
    """Of its words and of the bytes behind them, modulo 2^64; nothing is as fast to compute."""
    n_words = len(plane) // _WORD
    words = plane[: n_words * _WORD].view("<u8")
    rest = int(plane[n_words * _WORD :].sum(dtype=np.uint64))
    return (int(np.add.reduce(words)) + rest) % (1 << 64)
