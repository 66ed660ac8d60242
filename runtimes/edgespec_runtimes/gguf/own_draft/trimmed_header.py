"""Describes trimmed copies: drafts made from their target, with only what a draft needs.

The file has the target's layers and an output head for some of its tokens, under the name of the
embeddings, and also of the output where the architecture asks for one. Embeddings of all tokens
follow the tensors, where llama.cpp does not look, and are read by rows. There is no
tokenizer: token ids are the target's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgespec.errors import ModelError
from edgespec_runtimes.gguf.file.architectures import Trait, has
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile, TensorEntry, ValueType
from edgespec_runtimes.gguf.file.layout import (
    EMBEDDINGS,
    OUTPUT,
    PER_LAYER_EMBEDDINGS,
    TENSOR_TYPES,
    padded,
)

TOKEN_IDS = "edgespec.draft.token_ids"
"""Token of the target for each row of the head, ascending."""
TABLE_TYPE, TABLE_ROWS = "edgespec.draft.embeddings.type", "edgespec.draft.embeddings.rows"
HEAD_BITS, MAX_HEAD = 3.5, 64 << 10
"""Bits per weight, and most tokens of a head, for estimates."""
NARROW_BITS = 4.5
"""Least bits per weight where rows are no multiple of 256 elements."""


@dataclass(frozen=True, slots=True)
class TrimmedShape:
    """The tokens of a trimmed copy's head, and its table of embeddings."""

    token_ids: np.ndarray
    """Token of the target for each row of the head, int32, ascending."""
    table: TensorEntry
    scale: float
    """Factor of the table's rows."""

    @property
    def n_vocab(self) -> int:
        """Number of tokens that have embeddings."""
        return self.table.shape[1]


def is_trimmed(header: GgufFile) -> bool:
    """True if the model is a trimmed copy, which can only be a draft."""
    return TOKEN_IDS in header.entries


def can_be_trimmed(header: GgufFile) -> bool:
    """True if a trimmed copy of the model can be made: its graph takes embeddings in place of
    tokens, and looks up nothing else by a token."""
    names = header.tensors_by_name
    return (
        not has(header, Trait.NEEDS_TOKENS)
        and header.embedding_length % 32 == 0
        and EMBEDDINGS in names
        and PER_LAYER_EMBEDDINGS not in names
        and not is_trimmed(header)
    )


def trimmed_bytes(header: GgufFile, bits: float) -> int:
    """Estimated weights of a trimmed copy with so many bits per weight of its layers; 0 if none can
    be made."""
    if not can_be_trimmed(header):
        return 0
    if header.embedding_length % 256:  # types of fewer bits have such blocks
        bits = max(bits, NARROW_BITS)
    rest = (t for t in header.tensors if t.name not in (EMBEDDINGS, OUTPUT))
    return int(bits * sum(math.prod(t.shape) for t in rest) / 8) + head_bytes(header)


def head_bytes(header: GgufFile, n_tokens: int = MAX_HEAD) -> int:
    """Estimated bytes of a trimmed copy's head."""
    return int(HEAD_BITS * header.embedding_length * min(header.n_vocab, n_tokens) / 8)


def trimmed_shape(header: GgufFile) -> TrimmedShape:
    """Tokens and embeddings of a trimmed copy. Raises ModelError if they do not fit the file."""
    kind = TENSOR_TYPES.get(header.integer(TABLE_TYPE))
    n_embd, n_rows = header.embedding_length, header.integer(TABLE_ROWS)
    if has(header, Trait.NEEDS_TOKENS):
        raise _damaged(header, f"drafts of {header.architecture} are not supported")
    if kind is None or n_embd % kind.block_size or n_rows < 1:
        raise _damaged(header, f"{n_rows} embeddings of {n_embd} elements have no such type")
    heads = [
        header.tensors_by_name[one] for one in (EMBEDDINGS, OUTPUT) if one in header.tensors_by_name
    ]
    tokens = header.metadata[TOKEN_IDS]
    if not isinstance(tokens, GgufArray) or tokens.kind is not ValueType.INT32:
        raise _damaged(header, f"{TOKEN_IDS} is not an array of int32")
    ids = np.array(tokens.values(), np.int32)
    if not heads or any(head.shape != (n_embd, len(ids)) for head in heads):
        raise _damaged(header, f"its head has no row for each of {len(ids)} tokens")
    if not (ids[0] >= 0 and ids[-1] < n_rows and (np.diff(ids) > 0).all()):
        raise _damaged(header, f"the tokens of its head are not {len(ids)} of {n_rows}, ascending")
    last = max(tensor.offset + tensor.nbytes for tensor in header.tensors)
    offset, nbytes = padded(last, header.alignment), kind.nbytes(n_embd * n_rows)
    if len(header.paths) > 1 or header.path.stat().st_size < offset + nbytes:
        raise _damaged(header, "its embeddings are cut short")
    table = TensorEntry("embeddings", (n_embd, n_rows), kind, 0, offset, nbytes)
    scale = math.sqrt(n_embd) if has(header, Trait.SCALED) else 1.0
    return TrimmedShape(ids, table, scale)


def _damaged(header: GgufFile, what: str) -> ModelError:
    return ModelError(f"{header.path} is damaged: {what}; make the draft again")
