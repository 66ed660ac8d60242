"""Files of a repository on a hub, and the models that they form."""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?I?Q\d(?:_\w+?)?|BF16|F16|F32|FP16|MXFP4(?:_\w+?)?|TQ\d_\d)(?=$|[-./])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model: one file, all parts of a split one in order, or an ONNX graph and what it needs."""

    name: str
    """Name without `.gguf` and the number of a part, or without `.onnx`."""
    files: tuple[HubFile, ...]

    @property
    def quant(self) -> str | None:
        """Quantisation in the name; None if it has none."""
        quants = _QUANT.findall(self.name)
        return quants[-1] if quants else None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)
