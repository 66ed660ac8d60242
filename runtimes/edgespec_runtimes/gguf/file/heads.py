"""Heads: the GGUF architectures that guess from a target's hidden states, and what theirs must say.

Refuses what llama.cpp would not survive, and what this runtime cannot do, by name. Reads the header
and one small table of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec.errors import ModelError
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile, TensorEntry, ValueType

EAGLE3 = "eagle3"
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
_WITHOUT_OUTPUT = ("bitnet",)
"""Architectures whose graph has no output to lend: it multiplies with the embeddings."""
N_FUSED = 3
"""Layers of the target that an EAGLE-3 head fuses."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The part of a target that a head reads."""

    layers: tuple[int, ...]
    """Layers of the target whose inputs it fuses."""
    n_values: int
    """Values of each of them."""
    embeddings: TensorEntry | None = None
    """The target's, if the head has none of its own."""
    output: TensorEntry | None = None
    """The target's, if the head has none of its own."""

    @property
    def borrows(self) -> bool:
        return self.embeddings is not None or self.output is not None


def is_head(header: GgufFile) -> bool:
    """True for a head that this runtime can use as a draft."""
    return header.architecture == EAGLE3


def lacks_matrices(header: GgufFile) -> bool:
    """True for a head that computes with embeddings or an output of its target."""
    return not {EMBEDDINGS, OUTPUT} <= header.tensors_by_name.keys()


def head_shape(header: GgufFile, target: GgufFile | None = None) -> HeadShape:
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
    own = header.tensors_by_name
    embeddings = None if EMBEDDINGS in own else _lent(header, target, EMBEDDINGS)
    output = None if OUTPUT in own else _lent(header, target, OUTPUT)
    _check_tokens(header, output or own[OUTPUT])
    n_values = header.integer(header.key("target_hidden_size"))
    numbers = tuple(int(layer) for layer in layers.values())
    return HeadShape(numbers, n_values, embeddings, output)


def _lent(header: GgufFile, target: GgufFile | None, name: str) -> TensorEntry:
    """The target's matrix in the place of one that the head has not."""
    if target is None:
        raise ModelError(
            f"{header.path} has no {name} and takes its target's: name the model that it was "
            "trained for with -m"
        )
    lent = target.tensors_by_name
    found = lent.get(name) or lent.get(EMBEDDINGS)
    if name == OUTPUT and target.architecture in _WITHOUT_OUTPUT:
        found = None
    wanted = (header.embedding_length, header.n_vocab)
    if found is None or found.shape != wanted:
        has = " x ".join(map(str, found.shape)) if found else "none"
        raise ModelError(
            f"{header.path} has no {name} and takes its target's, of {wanted[0]} x {wanted[1]}; "
            f"{target.path} has {has}: name a head that was trained for this model, or another "
            "draft"
        )
    return found


def _check_tokens(header: GgufFile, output: TensorEntry) -> None:
    """Raise ModelError unless each row of the output stands for a token: llama.cpp writes its
    logits to these places."""
    n_rows, n_vocab = output.shape[-1], header.n_vocab
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
