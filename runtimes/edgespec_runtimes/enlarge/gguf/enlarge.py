"""Writes a larger GGUF model that computes the same function, to try paging without a download.

Plans the tensors for a number of layers and copies, and streams them; `replication` explains how
they grow, and why that is exact. Loads no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import ModelError, UsageError
from edgespec.settings.units import format_size
from edgespec.values import EnlargeReport
from edgespec_runtimes.enlarge.gguf.gguf_writer import (
    CHUNK_BYTES,
    NewModel,
    copied_pairs,
    pack_pair,
    read_bytes,
)
from edgespec_runtimes.enlarge.gguf.replication import (
    LlamaShape,
    Role,
    layer_roles,
    model_roles,
    muted,
)
from edgespec_runtimes.gguf.file.architectures import Trait, has, names_with
from edgespec_runtimes.gguf.file.details import ENLARGED_FROM
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry, read_header
from edgespec_runtimes.gguf.file.validation import MAX_LAYERS, validate

if TYPE_CHECKING:
    from edgespec.ports import Progress

FACTORS = (16, 8, 4, 2, 1)
"""Possible numbers of copies, K, largest first."""
FEWEST_LAYERS = 24
COMFORTABLE_LAYERS = 96
"""More layers are used only if no larger K reaches the size."""
TOLERANCE = 0.02
"""Largest relative deviation from the requested size."""


def enlarge(
    source: Path, out: Path, size_bytes: int, progress: Progress | None = None
) -> EnlargeReport:
    """Write a model of about `size_bytes` to `out` that computes the same function as `source`.

    Memory use is constant, and `out` is written atomically. Raises ModelError for a source that
    cannot be enlarged, UsageError for a size that cannot be reached within 2 %, EdgespecError if
    the disk is too small or fails.
    """
    header = read_header(source)
    validate(header)
    shape = _shape(header)
    plan = _choose(header, partial(_plan, header, shape), size_bytes)
    out = Path(out)
    _check_place(header, out)
    contents = (_content(header, tensor) for tensor in plan.tensors)
    plan.model.write(out, contents, "enlarging", progress)
    return EnlargeReport(out, plan.size_bytes, plan.factor, len(plan.layers), plan.parameters)


@dataclass(frozen=True, slots=True)
class LayerCopy:
    """A layer of the result: the copied layer of the source, and whether its output is muted."""

    source: int
    silent: bool


def spread(n_real: int, n_layers: int) -> tuple[LayerCopy, ...]:
    """The real layers in order, evenly spread, each followed by its muted copies."""
    sources = [index * n_real // n_layers for index in range(n_layers)]
    return tuple(
        LayerCopy(source, silent=index > 0 and sources[index - 1] == source)
        for index, source in enumerate(sources)
    )


@dataclass(frozen=True, slots=True)
class _GgufTensor:
    """A tensor of the result and its origin."""

    name: str
    source: TensorEntry
    role: Role
    factor: int
    silent: bool
    """True if it is completely muted, so that its layer adds nothing."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.role.grown(self.factor)

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.source.type.nbytes(self.n_elements)


@dataclass(frozen=True, slots=True)
class _GgufPlan:
    factor: int
    layers: tuple[LayerCopy, ...]
    tensors: tuple[_GgufTensor, ...]
    model: NewModel

    @property
    def size_bytes(self) -> int:
        return self.model.size_bytes

    @property
    def layer_bytes(self) -> float:
        """Mean size of a layer in bytes."""
        in_layers = sum(t.nbytes for t in self.tensors if t.name.startswith("blk."))
        return in_layers / len(self.layers)

    @property
    def parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)


def _shape(header: GgufFile) -> LlamaShape:
    """Dimensions of the source. Raises ModelError unless it is a LLaMA, dense or a mixture."""
    if not has(header, Trait.ENLARGEABLE):
        raise ModelError(
            f"{header.path} has the architecture {header.architecture}: only "
            f"{' and '.join(names_with(Trait.ENLARGEABLE))} can be enlarged"
        )
    if original := header.metadata.get(ENLARGED_FROM):
        raise ModelError(f"{header.path} is enlarged already: start from {original}")
    has_layers = any(tensor.name.startswith("blk.") for tensor in header.tensors)
    if not has_layers or min(header.n_heads, header.n_kv_heads) < 1:
        raise ModelError(f"{header.path} has no layers with attention: name another model")
    ffn = header.integer(header.key("feed_forward_length"))
    return LlamaShape(
        hidden=header.embedding_length,
        ffn=ffn,
        heads=header.n_heads,
        kv_heads=header.n_kv_heads,
        head_size=header.head_size,
        vocabulary=header.n_vocab,
        tied="output.weight" not in header.tensors_by_name,
        experts=header.integer(header.key("expert_count"), 0),
        expert_ffn=header.integer(header.key("expert_feed_forward_length"), ffn),
        shared_ffn=header.integer(header.key("expert_shared_feed_forward_length"), 0),
    )


def _choose(header: GgufFile, plan: Callable[[int, int], _GgufPlan], size_bytes: int) -> _GgufPlan:
    """The plan of the right size with the fewest layers.

    `plan` takes the factor K and the number of layers, and raises ModelError for a factor that the
    source does not allow. Raises its error, or UsageError if no plan is within TOLERANCE.
    """
    fewest = max(FEWEST_LAYERS, header.n_layers)
    nearest: _GgufPlan | None = None
    obstacle: ModelError | None = None
    for most in (COMFORTABLE_LAYERS, MAX_LAYERS):
        for factor in FACTORS:
            try:
                smallest = plan(factor, fewest)
            except ModelError as error:  # a smaller factor may work
                obstacle = error
                continue
            n_more = round((size_bytes - smallest.size_bytes) / smallest.layer_bytes)
            n_layers = min(max(fewest + n_more, fewest), max(most, fewest))
            planned = smallest if n_layers == fewest else plan(factor, n_layers)
            miss = abs(planned.size_bytes - size_bytes)
            if miss <= TOLERANCE * size_bytes:
                return planned
            if nearest is None or miss < abs(nearest.size_bytes - size_bytes):
                nearest = planned
    if obstacle is not None:
        raise obstacle
    assert nearest is not None
    raise UsageError(
        f"{header.path} cannot be enlarged to {format_size(size_bytes)}: the nearest size is "
        f"{format_size(nearest.size_bytes)}, with {len(nearest.layers)} layers"
    )


def _plan(header: GgufFile, shape: LlamaShape, factor: int, n_layers: int) -> _GgufPlan:
    layers = spread(header.n_layers, n_layers)
    tensors = tuple(_grown_tensors(header, shape, factor, layers))
    changed = _metadata(header, shape.grown(factor), tensors, layers)
    packed = {key: pack_pair(key, value) for key, value in changed.items()}
    described = [(tensor.name, tensor.source.type, tensor.shape) for tensor in tensors]
    model = NewModel(copied_pairs(header, packed), described, header.alignment)
    return _GgufPlan(factor, layers, tensors, model)


def _grown_tensors(
    header: GgufFile, shape: LlamaShape, factor: int, layers: tuple[LayerCopy, ...]
) -> Iterator[_GgufTensor]:
    """Tensors of the result in file order: head and embedding first, then layer by layer."""
    by_layer: dict[int, list[tuple[str, TensorEntry]]] = {n: [] for n in range(header.n_layers)}
    of_model, of_each_layer = model_roles(shape), layer_roles(shape)
    for tensor in header.tensors:
        block, _, rest = tensor.name.removeprefix("blk.").partition(".")
        if tensor.name.startswith("blk.") and block.isdecimal() and int(block) in by_layer:
            by_layer[int(block)].append((rest, tensor))
        else:
            role = _role(header, tensor, of_model.get(tensor.name), factor)
            yield _GgufTensor(tensor.name, tensor, role, factor, silent=False)
    for index, layer in enumerate(layers):
        for rest, tensor in by_layer[layer.source]:
            role = _role(header, tensor, of_each_layer.get(rest), factor)
            silent = layer.silent and role.feeds_residual
            yield _GgufTensor(f"blk.{index}.{rest}", tensor, role, factor, silent)


def _role(header: GgufFile, tensor: TensorEntry, role: Role | None, factor: int) -> Role:
    """The tensor's role. Raises ModelError if its type cannot be replicated."""
    kind = tensor.type
    if role is None or tensor.shape != role.shape:
        raise ModelError(
            f"{header.path}: {tensor.name} {list(tensor.shape)} is no part of a LLaMA, which is "
            "all that can be enlarged"
        )
    if factor > 1 and role.columns is not None and role.columns % kind.block_size:
        raise ModelError(
            f"{header.path}: {tensor.name} would be repeated in runs of {role.columns}, but a "
            f"{kind.name} block holds {kind.block_size}: use another quantisation"
        )
    return role


def _metadata(
    header: GgufFile,
    grown: LlamaShape,
    tensors: tuple[_GgufTensor, ...],
    layers: tuple[LayerCopy, ...],
) -> dict[str, int | str]:
    """Metadata that differs from the source's or replaces llama.cpp's defaults."""
    parameters = sum(tensor.n_elements for tensor in tensors)
    integers = {
        "block_count": len(layers),
        "embedding_length": grown.hidden,
        "feed_forward_length": grown.ffn,
        "attention.head_count": grown.heads,
        "attention.head_count_kv": grown.kv_heads,
        "attention.key_length": grown.head_size,
        "attention.value_length": grown.head_size,
        "rope.dimension_count": grown.head_size,
    }
    if header.architecture != "llama":
        n_dense = header.integer(header.key("leading_dense_block_count"), 0)
        integers |= {
            "leading_dense_block_count": sum(layer.source < n_dense for layer in layers),
            "expert_feed_forward_length": grown.expert_ffn,
            "expert_shared_feed_forward_length": grown.shared_ffn,
        }
    changed: dict[str, int | str] = {
        "general.name": f"{header.name}, enlarged",
        "general.size_label": f"{parameters / 1e6:.0f}M",
        ENLARGED_FROM: header.name,
    }
    return changed | {header.key(suffix): number for suffix, number in integers.items()}


def _check_place(header: GgufFile, out: Path) -> None:
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"{out} must be a file in a folder that exists")
    if any(out.exists() and path.samefile(out) for path in header.paths):
        raise UsageError(f"{out} is the source itself: write the enlarged model elsewhere")


def _content(header: GgufFile, tensor: _GgufTensor) -> Iterator[bytes]:
    """Bytes of the tensor in pieces of about CHUNK_BYTES."""
    source, role, factor = tensor.source, tensor.role, tensor.factor
    path = header.paths[source.file_index]
    row_bytes = source.type.nbytes(source.shape[0])
    n_rows = source.nbytes // row_bytes
    run = role.rows or n_rows
    step = max(1, CHUNK_BYTES // (row_bytes * factor))
    piece_at, piece = -1, b""
    for run_start in range(0, n_rows, run):
        for _ in range(factor if role.rows else 1):
            for row in range(run_start, run_start + run, step):
                if row != piece_at:
                    rows = min(step, run_start + run - row)
                    raw = read_bytes(path, source.offset + row * row_bytes, rows * row_bytes)
                    if tensor.silent:
                        raw = muted(raw, source.type)
                    piece_at, piece = row, role.repeated(raw, rows, source.type, factor)
                yield piece
