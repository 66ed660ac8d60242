"""Checks by its header whether a draft can be adapted: a GGUF file with LLaMA's architecture."""

from __future__ import annotations

import re

from edgespec.errors import ModelError
from edgespec_runtimes.gguf.file.header import GgufFile

_TENSORS = re.compile(
    r"(token_embd|output_norm|output"
    r"|blk\.\d+\.(attn_(q|k|v|output|norm)|ffn_(gate|up|down|norm)))\.weight"
)


def check(header: GgufFile) -> None:
    """Raise ModelError for a model that cannot be adapted."""
    strange = [tensor.name for tensor in header.tensors if not _TENSORS.fullmatch(tensor.name)]
    kind = header.metadata.get(header.key("rope.scaling.type"), "none")
    reason = ""
    if header.architecture != "llama":
        reason = f"is of the architecture {header.architecture}"
    elif strange:
        reason = f"has {strange[0]}, which LLaMA's own architecture has not"
    elif kind != "none":
        reason = f"scales its rotation ({kind})"
    if reason:
        raise ModelError(
            f"{header.name} {reason}: only plain drafts of the architecture llama can be adapted"
        )
