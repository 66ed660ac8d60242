"""Determines the roles of a decoder's inputs and outputs: ids, mask, positions, past, logits, etc.

Roles are determined by name; shapes and types are checked for support.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from edgespec.errors import ModelError

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
MAX_VOCABULARY = 1 << 20
"""Most tokens of a vocabulary; the largest that is used has 262,144."""
MAX_WIDTH = 1 << 20
"""Most numbers of a token's keys in one layer."""
_CACHE = re.compile(r"(?:past|present)\D*?(\d+)\D*?(key|value)$")
_FLIPPED = re.compile(r"(?:past|present)_(key|value)s?[._](\d+)$")
_FLOATS: dict[int, int] = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2}


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of a decoder's inputs and outputs by role; lists have (key, value) by layer."""

    past: tuple[tuple[str, str], ...]
    present: tuple[tuple[str, str], ...]
    kv_kind: int
    """Element type of keys and values, a value of TensorProto."""
    kv_heads: int
    head_size: int
    n_vocab: int
    logits_kind: int
    """Element type of the logits, a value of TensorProto."""
    has_positions: bool
    has_mask: bool

    @property
    def n_layers(self) -> int:
        return len(self.past)

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token in the cache of all layers."""
        return 2 * self.n_layers * self.kv_heads * self.head_size * _FLOATS[self.kv_kind]


def find_roles(graph: onnx.GraphProto, where: str) -> Roles:
    """Roles of a decoder's inputs and outputs. Raises ModelError for a model without a past."""
    inputs = {value.name: value for value in graph.input}
    outputs = {value.name: value for value in graph.output}
    if IDS not in inputs or LOGITS not in outputs:
        raise ModelError(
            f"{where} is no decoder: it needs an input {IDS} and an output {LOGITS}, it has "
            f"{_listed(inputs)} and {_listed(outputs)}"
        )
    past, present = _cache(inputs), _cache(outputs)
    if not past or not present:
        raise ModelError(
            f"{where} was exported without a past: export it again as text-generation-with-past"
        )
    if past.keys() != present.keys() or set(past) != {
        (layer, what) for layer in range(len(past) // 2) for what in ("key", "value")
    }:
        raise ModelError(f"{where}: keys and values of its past and present do not correspond")
    known = {IDS, MASK, POSITIONS, *past.values()}
    if unknown := sorted(inputs.keys() - known):
        raise ModelError(
            f"{where} has inputs that a decoder does not need: {_listed(unknown)}; "
            "export the decoder alone, as text-generation-with-past, or build it without "
            "use_paged_attention"
        )
    n_layers = len(past) // 2
    kinds, shapes = set(), set()
    for name in past.values():
        tensor = inputs[name].type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        kinds.add(tensor.elem_type)
        shapes.add((dims[1], dims[3]) if len(dims) == 4 else (0, 0))
    kv_heads, head_size = next(iter(shapes))
    if kv_heads and not head_size:
        raise ModelError(
            f"{where} does not say how large its heads are: put the genai_config.json that it was "
            "built with beside it"
        )
    if len(kinds) > 1 or len(shapes) > 1 or kv_heads < 1 or head_size < 1:
        raise ModelError(
            f"{where}: its past must be [batch, heads, tokens, head size] with the same, fixed "
            "numbers in every layer"
        )
    if kv_heads * head_size > MAX_WIDTH:
        raise ModelError(
            f"{where} is damaged: a token has {kv_heads:,} heads of {head_size:,} numbers in each "
            "layer of its past; export or copy it again"
        )
    if not kinds <= _FLOATS.keys():
        name = TensorProto.DataType.Name(next(iter(kinds)))
        raise ModelError(f"{where} keeps keys and values as {name}: export it as fp32 or fp16")
    return Roles(
        past=tuple((past[i, "key"], past[i, "value"]) for i in range(n_layers)),
        present=tuple((present[i, "key"], present[i, "value"]) for i in range(n_layers)),
        kv_kind=next(iter(kinds)),
        kv_heads=kv_heads,
        head_size=head_size,
        n_vocab=_n_vocab(outputs[LOGITS], where),
        logits_kind=outputs[LOGITS].type.tensor_type.elem_type,
        has_positions=POSITIONS in inputs,
        has_mask=MASK in inputs,
    )


def set_head_size(graph: onnx.GraphProto, head_size: int) -> None:
    """Set the last dimension of the past in place, if the export left it open.

    onnxruntime-genai's builder does so, because a quantised past would be narrower.
    """
    past = set(_cache(value.name for value in graph.input).values())
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in past and len(dims) == 4 and not dims[3].dim_value:
            dims[3].dim_value = head_size


def _cache(values: Iterable[str]) -> dict[tuple[int, str], str]:
    """Names of a past or present by layer, and by key or value."""
    found = {}
    for name in values:
        if match := _CACHE.match(name):
            found[int(match[1]), match[2]] = name
        elif match := _FLIPPED.match(name):
            found[int(match[2]), match[1]] = name
    return found


def _n_vocab(logits: onnx.ValueInfoProto, where: str) -> int:
    dims = logits.type.tensor_type.shape.dim
    if len(dims) != 3 or dims[2].dim_value < 1 or dims[1].dim_value == 1:
        raise ModelError(
            f"{where}: its logits must be [batch, tokens, vocabulary], of all tokens: build it "
            "again without prune_lm_head"
        )
    if (kind := logits.type.tensor_type.elem_type) not in {*_FLOATS, TensorProto.DOUBLE}:
        name = TensorProto.DataType.Name(kind)
        raise ModelError(f"{where} gives its logits as {name}: export it as FLOAT or FLOAT16")
    if dims[2].dim_value > MAX_VOCABULARY:
        raise ModelError(
            f"{where} is damaged: its logits are those of {dims[2].dim_value:,} tokens, no model "
            f"has more than {MAX_VOCABULARY:,}; export or copy it again"
        )
    return int(dims[2].dim_value)


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "")
