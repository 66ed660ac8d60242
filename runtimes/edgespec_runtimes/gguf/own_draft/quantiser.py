"""Quantises a GGUF model with llama.cpp's quantiser.

It runs in a process of its own, because it takes minutes for a large model and can only be
cancelled by killing the process.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.concurrency.own_processes import exit_reason, python, signal_name
from edgespec.concurrency.program import prefer_to_kill
from edgespec.errors import EdgespecError, UsageError
from edgespec.settings.units import format_size
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.layout import KINDS
from edgespec_runtimes.gguf.file.validation import validate
from edgespec_runtimes.gguf.llama.bindings import lib

if TYPE_CHECKING:
    from edgespec.ports import Progress


FILE_TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S"),
    *("Q4_1", "Q4_0", "IQ4_XS", "IQ4_NL", "Q3_K_L", "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_S", "Q2_K"),
    *("TQ2_0", "TQ1_0"),
)
"""Supported file types of llama.cpp's quantiser, which mix tensor types, largest first: they need
no importance matrix and can be paged."""

_STEP = re.compile(r"\[ *(\d+)/ *(\d+)\]")
_REASON = re.compile(r"failed to quantize: (.+)")
_UNWRITTEN = "iostream error"
"""Words of C++ for a file that cannot be written."""
BUFFER_BYTES = 1 << 30
"""Most bytes of rows in memory while quantising."""


def quantise(
    source: Path,
    out: Path,
    name: str,
    progress: Progress | None = None,
    vocabulary_type: str = "",
    buffer_bytes: int = BUFFER_BYTES,
) -> None:
    """Write the model `source` to `out` in the quantisation `name`.

    `vocabulary_type` is the tensor type of embeddings and output head, otherwise llama.cpp's
    choice; rows take up to `buffer_bytes` of memory at a time. Raises UsageError for an unknown
    name, ModelError for an invalid source, EdgespecError if llama.cpp fails.
    """
    if name not in FILE_TYPES:
        raise UsageError(f"{name} is none of {', '.join(FILE_TYPES)}")
    validate(read_header(source))
    command = python("-m", __name__, str(source), str(out), name, vocabulary_type)
    command.append(str(buffer_bytes))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, encoding="utf-8", errors="replace"
    ) as process:
        prefer_to_kill(process.pid)
        try:
            last_line = _follow(process, f"quantising to {name}", progress)
        except BaseException:
            process.kill()
            raise
    if signal_name(process.returncode):
        why = exit_reason(process.returncode, last_line)
        raise EdgespecError(f"the process ended while storing {source} as {name} ({why})")
    if _UNWRITTEN in last_line and out.parent.is_dir():
        free_bytes = shutil.disk_usage(out.parent).free
        raise EdgespecError(
            f"{source} could not be stored as {name} in {out.parent}, where "
            f"{format_size(free_bytes)} are free: make room, or choose another disk"
        )
    if process.returncode:
        raise EdgespecError(
            f"{source} could not be stored as {name}: {last_line or 'no reason given'}"
        )


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


def _run(source: str, out: str, name: str, vocabulary: str, n_bytes: str) -> int:
    """Quantise in the child process; writes the current tensor, or the error, to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends the child

    @lib.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
    def receive(level: int, text: bytes, _: Any) -> None:
        line = text.decode(errors="replace")
        step, reason = _STEP.search(line), _REASON.search(line)
        if step or reason:
            sys.stdout.write(f"{step[0] if step else reason[1]}\n")  # type: ignore[index]
            sys.stdout.flush()

    lib.llama_log_set(receive, None)
    params = lib.llama_model_quantize_default_params()
    mixed = "ALL_F32" if name == "F32" else f"MOSTLY_{name}"
    params.ftype, params.allow_requantize = getattr(lib, f"LLAMA_FTYPE_{mixed}"), True
    params.max_buf_size = int(n_bytes)
    if vocabulary:
        params.output_tensor_type = params.token_embedding_type = KINDS[vocabulary].code
    return int(
        lib.llama_model_quantize(os.fsencode(source), os.fsencode(out), ctypes.byref(params))
    )


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
