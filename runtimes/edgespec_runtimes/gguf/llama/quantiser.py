"""Stores a GGUF model in another quantisation, with llama.cpp's own quantiser.

It runs in a process of its own, which can be ended: the quantiser listens to nobody, and a large
model takes it minutes. Knows which types can be enlarged afterwards, and nothing of enlarging.
"""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp.llama_cpp as lib

from edgespec.concurrency.exit_codes import crash_name, exit_message
from edgespec.errors import EdgespecError, UsageError
from edgespec_runtimes.gguf.file.header import GgufFile, read_header
from edgespec_runtimes.gguf.file.layout import TENSOR_TYPES
from edgespec_runtimes.gguf.file.validation import validate

if TYPE_CHECKING:
    from edgespec.ports import Progress


@dataclass(frozen=True, slots=True)
class FileType:
    """A mixture of tensor types, as llama.cpp's quantiser knows it."""

    ftype: int
    """`enum llama_ftype` of llama.h."""
    narrow: str = ""
    """Tensor type for rows that do not hold whole blocks of 256; empty where blocks are smaller."""


FILE_TYPES: Mapping[str, FileType] = {
    "F32": FileType(0),
    "F16": FileType(1),
    "BF16": FileType(32),
    "Q8_0": FileType(7),
    "Q6_K": FileType(18, "Q8_0"),
    "Q5_K_M": FileType(17, "Q5_1"),
    "Q5_K_S": FileType(16, "Q5_1"),
    "Q5_1": FileType(9),
    "Q5_0": FileType(8),
    "Q4_K_M": FileType(15, "Q5_0"),
    "Q4_K_S": FileType(14, "Q5_0"),
    "Q4_1": FileType(3),
    "Q4_0": FileType(2),
    "IQ4_XS": FileType(30, "IQ4_NL"),
    "IQ4_NL": FileType(25),
    "Q3_K_L": FileType(13, "Q4_1"),
    "Q3_K_M": FileType(12, "Q4_1"),
    "Q3_K_S": FileType(11, "Q4_0"),
    "IQ3_M": FileType(27, "IQ4_NL"),
    "IQ3_S": FileType(26, "IQ4_NL"),
    "Q2_K": FileType(10, "Q4_0"),
    "TQ2_0": FileType(37, "Q4_0"),
    "TQ1_0": FileType(36, "Q4_0"),
}
"""File types that need no importance matrix and that are paged; larger ones first."""
ALIASES = {"Q5_K": "Q5_K_M", "Q4_K": "Q4_K_M", "Q3_K": "Q3_K_M"}
"""Short names, as llama-quantize knows them."""

_STEP = re.compile(r"\[ *(\d+)/ *(\d+)\]")
_REASON = re.compile(r"failed to quantize: (.+)")
_BUFFER_BYTES = 1 << 30


def quantise(source: Path, out: Path, name: str, progress: Progress | None = None) -> None:
    """Write `out`: the model `source` in the quantisation `name`.

    The projection back from the heads is stored so that the heads of each KV head begin a block:
    only such a model can be enlarged. Raises UsageError for an unknown name, ModelError for a
    source that is none, EdgespecError where llama.cpp fails.
    """
    name = _known(name)
    header = read_header(source)
    validate(header)
    command = [sys.executable, "-m", __name__, str(source), str(out), name, _narrow(header, name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        try:
            last_line = _follow(process, f"quantising to {name}", progress)
        except BaseException:
            process.kill()
            raise
    if crash_name(process.returncode):
        raise EdgespecError(
            exit_message(f"storing {source} as {name}", process.returncode, last_line)
        )
    if process.returncode:
        raise EdgespecError(
            f"{source} could not be stored as {name}: {last_line or 'no reason given'}"
        )


def _known(name: str) -> str:
    known = ALIASES.get(name.upper(), name.upper())
    if known not in FILE_TYPES:
        raise UsageError(f"--type {name} is none of {', '.join(FILE_TYPES)}")
    return known


def _narrow(header: GgufFile, name: str) -> str:
    """The tensor type for attn_output, empty where the one that llama.cpp chooses will do."""
    narrow = FILE_TYPES[name].narrow
    # what enlarging repeats in one piece
    group = header.n_heads // header.n_kv_heads * header.head_size
    if not narrow or group % 256 == 0:
        return ""
    return narrow if group % 32 == 0 else "F16"


def _follow(process: subprocess.Popen[str], what: str, progress: Progress | None) -> str:
    """Report the child's progress; returns the last other line of its output."""
    assert process.stdout is not None
    last_line = ""
    for line in process.stdout:
        step = _STEP.search(line)
        if step is None:
            last_line = line.strip()
        elif progress is not None:
            progress(what, int(step[1]) / int(step[2]))
    return last_line


def _run(source: str, out: str, name: str, narrow: str) -> int:
    """The child: quantise, and say on stdout which tensor it is at, or why it failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear, who ends us

    @lib.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
    def receive(level: int, text: bytes, _: Any) -> None:
        line = text.decode(errors="replace")
        step, reason = _STEP.search(line), _REASON.search(line)
        if step or reason:
            sys.stdout.write(f"{step[0] if step else reason[1]}\n")  # type: ignore[index]
            sys.stdout.flush()

    lib.llama_log_set(receive, None)
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = FILE_TYPES[name].ftype, True
    params.max_buf_size = _BUFFER_BYTES
    if narrow:
        code = next(kind.code for kind in TENSOR_TYPES.values() if kind.name == narrow)
        override = lib.llama_model_tensor_override
        overrides = (override * 2)(override(b"attn_output", code), override(None, 0))
        params.tt_overrides = overrides
    return int(lib.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params)))


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
