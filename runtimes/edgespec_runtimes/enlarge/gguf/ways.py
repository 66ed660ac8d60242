"""Decides how each of a target's tensors becomes one of its draft: whole, as it is stored; nested,
of the upper bits of its codes; or its own, a coarse copy. Knows headers alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from edgespec.values import NESTED, DraftSizes
from edgespec_runtimes.gguf.file.architectures import Trait, has
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.layout import (
    BY_TOKEN,
    EMBEDDINGS,
    KINDS,
    NONE,
    OUTPUT,
    PER_LAYER_EMBEDDINGS,
    TensorType,
)
from edgespec_runtimes.gguf.own_draft.nesting import NESTINGS, UNIT, Nesting
from edgespec_runtimes.gguf.own_draft.trimmed import is_trimmed
from edgespec_runtimes.gguf.weights.segments import SMALL_BYTES

_NARROW_TYPE = "Q4_0"
"""Type of rows that are no multiple of 256 elements."""
COARSE: Mapping[str, Mapping[str, str]] = {
    "Q4_0": {"token_embd": "Q3_K", "output": "Q3_K"},
    "Q3_K": {},
    "Q2_K": {
        **dict.fromkeys(("token_embd", "output", "ffn_down", "attn_output"), "Q3_K"),
        "attn_v": "Q4_K",
    },
}
"""Kinds of coarse copies, with types of their tables, and of the matrices that matter most."""
_KEPT = re.compile(r"norm|gate_inp|conv|time_mix|altup|laurel|per_layer|position|rel_b")
"""Names of matrices that graphs multiply otherwise, or that are small and matter."""
_MAX_HEAD = 64 << 10
"""Most tokens that a head rates: of code and prose, 0.7 to 1.2 % of the tokens are others."""


def can_be_trimmed(header: GgufFile) -> bool:
    """True if a trimmed copy of the model can be made: its graph takes rows of tables, which a pass
    fills, in place of tokens."""
    names = header.tensors_by_name
    return (
        not has(header, Trait.NEEDS_TOKENS)
        and header.embedding_length % 32 == 0
        and EMBEDDINGS in names
        and (PER_LAYER_EMBEDDINGS not in names or has(header, Trait.ADDS_TO_TOKENS))
        and not is_trimmed(header)
    )


def copied_type(tensor: TensorEntry, kind: str) -> TensorType:
    """The type of a tensor in a draft of this kind that is not nested: a matrix is whole unless the
    kind is coarser."""
    *_, part, suffix = ("", *tensor.name.split("."))
    is_matrix = suffix == "weight" and len(tensor.shape) > 1
    if kind not in COARSE or not is_matrix or _KEPT.search(tensor.name):
        return tensor.type
    coarse = KINDS[COARSE[kind].get(part, kind)]
    if tensor.shape[0] % coarse.block_size:
        coarse = KINDS[_NARROW_TYPE]
    n = math.prod(tensor.shape)
    is_coarser = tensor.type.kernels is not NONE and coarse.nbytes(n) < tensor.nbytes
    return coarse if is_coarser and tensor.shape[0] % coarse.block_size == 0 else tensor.type


def nesting_of(entry: TensorEntry, kind: str) -> Nesting | None:
    """The way in which a matrix nests in a draft of this kind; None if it does not.

    The later kinds take less memory. Attention, which matters most, has the largest upper part in
    all, and is whole in the first if that has 2 bits: of the probabilities of Qwen2.5-Coder-1.5B in
    Q8_0 with 2 bits elsewhere 82 % are the target's, 78 with 2 bits everywhere.
    """
    ways = NESTINGS[entry.type.name] if kind in NESTED else ()
    if not ways or entry.nbytes < SMALL_BYTES or len(entry.shape) != 2 or entry.shape[0] % UNIT:
        return None
    if ".attn_" not in entry.name:
        return ways[min(NESTED.index(kind), len(ways) - 1)]
    return None if kind == NESTED[0] and ways[0].upper.name == "Q2_K" else ways[0]


def draft_sizes(header: GgufFile) -> list[DraftSizes]:
    """Sizes of the drafts that can be made from a model.

    None has upper parts of nearly all bits, which would save little.
    """
    if not can_be_trimmed(header):
        return []
    found = [_sizes(header, kind) for kind in (*COARSE, *NESTED)]
    return [one for one in found if one.kind in COARSE or 3 * one.lower_bytes >= one.weight_bytes]


def _sizes(header: GgufFile, kind: str) -> DraftSizes:
    n_bytes = n_lower = n_unread = n_weights = 0
    for entry in header.tensors:
        if entry.name not in BY_TOKEN:
            nesting, n = nesting_of(entry, kind), math.prod(entry.shape)
            n_weights += n
            lower_bytes = n // UNIT * nesting.lower_bytes if nesting else 0
            n_lower += lower_bytes
            n_bytes += (nesting.upper if nesting else copied_type(entry, kind)).nbytes(n)
            n_unread += (entry.nbytes - lower_bytes) * (entry.nbytes >= SMALL_BYTES)
    bits, head_tokens = 8 * n_bytes / n_weights, _MAX_HEAD // (1 + (kind in NESTED[1:]))
    head = header.tensors_by_name.get(OUTPUT, header.tensors_by_name[EMBEDDINGS])
    nesting, n = nesting_of(head, kind), head.shape[0] * min(head.shape[1], head_tokens)
    n_bytes += (nesting.upper if nesting else copied_type(head, kind)).nbytes(n)
    return DraftSizes(kind, bits, n_bytes, head_tokens, n_lower, n_unread * (kind in NESTED))
