"""Heads: the GGUF architectures that guess from a target's hidden states, and what theirs must say.

Refuses what llama.cpp would not survive, and what this runtime cannot do, by name. Reads the header
and one small table of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec.errors import ModelError
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile, ValueType

EAGLE3 = "eagle3"
N_FUSED = 3
"""Layers of the target that an EAGLE-3 head fuses."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The part of a target that a head reads."""

    layers: tuple[int, ...]
    """Layers of the target whose inputs it fuses."""
    n_values: int
    """Values of each of them."""


def is_head(header: GgufFile) -> bool:
    """True for a head that this runtime can use as a draft."""
    return header.architecture == EAGLE3


def head_shape(header: GgufFile) -> HeadShape:
    """The part of its target that a head reads. Raises ModelError for one that cannot be used."""
    layers = header.metadata.get(header.key("target_layers"))
    is_array = isinstance(layers, GgufArray) and layers.kind in (ValueType.INT32, ValueType.UINT32)
    if not isinstance(layers, GgufArray) or not is_array or len(layers) != N_FUSED:
        raise ModelError(
            f"{header.path} names no {N_FUSED} target_layers: convert the head again with "
            "llama.cpp's convert_hf_to_gguf.py and --target-model-dir"
        )
    if header.n_layers != 1:
        raise ModelError(
            f"{header.path} has {header.n_layers} layers, and an EAGLE-3 head has one: name another"
        )
    for name, whose in (("token_embd.weight", "token embeddings"), ("output.weight", "output")):
        if name not in header.tensors_by_name:
            raise ModelError(
                f"{header.path} has no {name}: it shares the target's {whose}, which edgespec does "
                "not lend to heads; name a head with its own, or another draft"
            )
    _check_tokens(header)
    n_values = header.integer(header.key("target_hidden_size"))
    return HeadShape(tuple(int(layer) for layer in layers.values()), n_values)


def _check_tokens(header: GgufFile) -> None:
    """Raise ModelError unless each row of the output stands for a token: llama.cpp writes its
    logits to these places."""
    n_rows, n_vocab = header.tensors_by_name["output.weight"].shape[-1], header.n_vocab
    table = header.tensors_by_name.get("d2t")
    if table is None:
        fits = n_rows == n_vocab
    elif table.type.name != "I64" or table.shape != (n_rows,):
        fits = False
    else:
        with header.paths[table.file_index].open("rb") as file:
            file.seek(table.offset)
            tokens = np.frombuffer(file.read(table.nbytes), "<i8")
        fits = 0 <= int(tokens.min()) <= int(tokens.max()) < n_vocab
    if not fits:
        raise ModelError(
            f"{header.path} is damaged: its output has {n_rows} rows, and d2t does not give each "
            f"one of {n_vocab} tokens; download or convert it again"
        )
