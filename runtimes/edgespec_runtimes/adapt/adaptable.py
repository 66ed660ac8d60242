"""Checks whether a draft can be adapted: a GGUF file with LLaMA's architecture. Reads the
header."""

from __future__ import annotations

import re

from edgespec.errors import ModelError
from edgespec_runtimes.gguf.file.header import GgufFile

ARCHITECTURE = "llama"
_TENSORS = re.compile(
    r"(token_embd|output_norm|output"
    r"|blk\.\d+\.(attn_(q|k|v|output|norm)|ffn_(gate|up|down|norm)))\.weight"
)


def check(header: GgufFile) -> None:
    """Raise ModelError for a model that cannot be adapted."""
    if header.architecture != ARCHITECTURE:
        raise ModelError(
            f"{header.name} is of the architecture {header.architecture}: only drafts of the "
            f"architecture {ARCHITECTURE} can be adapted"
        )
    strange = [tensor.name for tensor in header.tensors if not _TENSORS.fullmatch(tensor.name)]
    if strange:
        raise ModelError(
            f"{header.name} has {strange[0]}, which LLaMA's own architecture has not: only plain "
            f"drafts of the architecture {ARCHITECTURE} can be adapted"
        )
    kind = header.metadata.get(header.key("rope.scaling.type"), "none")
    if kind != "none":
        raise ModelError(
            f"{header.name} scales its rotation ({kind}): only plain drafts of the architecture "
            f"{ARCHITECTURE} can be adapted"
        )
