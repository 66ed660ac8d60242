"""Quantises a GGUF model with llama.cpp's quantiser.

It runs in a process of its own, because it takes minutes for a large model and can only be
cancelled by killing the process. Knows which types can be enlarged afterwards.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.concurrency.exit_codes import exit_message, signal_name
from edgespec.concurrency.interpreter import python
from edgespec.concurrency.program import prefer_to_kill
from edgespec.errors import EdgespecError, UsageError
from edgespec.settings.units import format_size
from edgespec_runtimes.gguf.file.header import GgufFile, read_header
from edgespec_runtimes.gguf.file.layout import KINDS
from edgespec_runtimes.gguf.file.validation import validate
from edgespec_runtimes.gguf.llama.bindings import lib

if TYPE_CHECKING:
    from edgespec.ports import Progress


FILE_TYPES: Mapping[str, str] = {
    "F32": "",
    "F16": "",
    "BF16": "",
    "Q8_0": "",
    "Q6_K": "Q8_0",
    "Q5_K_M": "Q5_1",
    "Q5_K_S": "Q5_1",
    "Q5_1": "",
    "Q5_0": "",
    "Q4_K_M": "Q5_0",
    "Q4_K_S": "Q5_0",
    "Q4_1": "",
    "Q4_0": "",
    "IQ4_XS": "IQ4_NL",
    "IQ4_NL": "",
    "Q3_K_L": "Q4_1",
    "Q3_K_M": "Q4_1",
    "Q3_K_S": "Q4_0",
    "IQ3_M": "IQ4_NL",
    "IQ3_S": "IQ4_NL",
    "Q2_K": "Q4_0",
    "TQ2_0": "Q4_0",
    "TQ1_0": "Q4_0",
}
"""Supported file types of llama.cpp's quantiser, which mix tensor types, largest first: they need
no importance matrix and can be paged. With each, the tensor type for rows that are no multiples of
256 elements; empty if blocks are smaller."""

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

    In the attention output projection, the heads of each KV head begin at a block boundary, so that
    the model can be enlarged. `vocabulary_type` is the tensor type of embeddings and output head,
    otherwise llama.cpp's choice; rows take up to `buffer_bytes` of memory at a time. Raises
    UsageError for an unknown name, ModelError for an invalid source, EdgespecError if llama.cpp
    fails.
    """
    if name not in FILE_TYPES:
        raise UsageError(f"{name} is none of {', '.join(FILE_TYPES)}")
    header = read_header(source)
    validate(header)
    command = python("-m", __name__, str(source), str(out), name, _narrow(header, name))
    command += [vocabulary_type, str(buffer_bytes)]
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
        raise EdgespecError(
            exit_message(f"storing {source} as {name}", process.returncode, last_line)
        )
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


def _narrow(header: GgufFile, name: str) -> str:
    """Tensor type for attn_output; empty to use llama.cpp's choice."""
    narrow = FILE_TYPES[name]
    # the part that enlarging repeats
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


def _run(source: str, out: str, name: str, narrow: str, vocabulary: str, n_bytes: str) -> int:
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
    if narrow:
        override = lib.llama_model_tensor_override
        overrides = (override * 2)(override(b"attn_output", KINDS[narrow].code), override(None, 0))
        params.tt_overrides = overrides
    return int(
        lib.llama_model_quantize(os.fsencode(source), os.fsencode(out), ctypes.byref(params))
    )


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
