"""Names of models on Hugging Face's hub, as its pages, llama.cpp and Ollama spell them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from edgespec.errors import UsageError

_REFERENCE = re.compile(
    r"(?:(?:https?:/+)?(?:www\.)?(?:hf\.co|huggingface\.co)/)?"
    r"(?P<repo>\w[\w.-]*/\w[\w.-]*(?<!\.gguf)(?<!\.onnx))(?::(?P<quant>[\w.-]+))?"
    r"(?:/(?:tree|blob|resolve)/main(?:/(?P<path>[^?#]*[^?#/]))?)?/?(?:[?#].*)?",
    re.ASCII,
)
"""Names that end like a model file are excluded."""


@dataclass(frozen=True, slots=True)
class HubReference:
    """A user's name for a model on a hub: `USER/REPO`, `USER/REPO:QUANT`, or a page's address."""

    repo: str
    quant: str | None = None
    """Quantisation in the file name, such as `Q4_K_M`, ignoring case; None: the default."""
    path: str | None = None
    """File or folder of the repository that an address names."""
    takes_heads: bool = False
    """A repository that holds drafting heads alone is meant, too."""

    def __str__(self) -> str:
        path = f"/blob/main/{self.path}" if self.path else ""
        return f"{self.repo}:{self.quant}" if self.quant else self.repo + path

    def names(self, files: Iterable[str]) -> bool:
        """True if the path is one of these files or a folder of one, or if there is no path."""
        path = self.path
        return path is None or any(f"{file}/".startswith(f"{path}/") for file in files)


def find(text: str) -> HubReference | None:
    """The reference that `text` is; None if it is none."""
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        return None
    return HubReference(match["repo"], match["quant"], match["path"] and unquote(match["path"]))


def parse(text: str) -> HubReference:
    """The reference that `text` is. Raises UsageError."""
    if (found := find(text)) is None:
        raise UsageError(
            f"{text!r} names no model of a hub: write USER/REPO or USER/REPO:QUANT, such as "
            "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"
        )
    return found
