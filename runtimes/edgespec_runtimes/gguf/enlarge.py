"""Writes a bigger GGUF model that computes the same function: the honest way to try paging without
a download. Knows the plain LLaMA architecture and the container; loads no model.

The law. Let K be a power of two and x the source's residual vector. The enlarged model carries
K * [x, x, ..., x], K copies. Wherever its layers read or write, the source's numbers come out again:

- embedding: rows tiled K times and multiplied by K, which makes the residual what it should be;
- RMSNorm: with epsilon * K**2 the factor K cancels, so that the normalised vector is n, K times
  over; the norm's weights are tiled and divided by K, so each copy is n / K;
- q, k, v, gate and up read K copies of n / K through their own weights tiled along the row, and sum
  to what they were. KV heads stay as they are, hence the KV cache of a layer too; query heads are
  repeated K times beside the KV head that they share, hidden units of the FFN K times;
- attn_output and ffn_down read every value K times through their weights tiled along the row, and
  sum to K times what they were: the residual's factor. Their rows are tiled to reach all K copies;
- output norm and head: norm / K with the head's rows tiled; when the head is tied to the embedding
  its rows carry another K, so norm / K**2;
- biases: those that add to the residual are multiplied by K, all are tiled like their rows;
- an inserted layer is a copy of the real layer before it with zeros for attn_output and ffn_down:
  it computes as much as any other and adds nothing.

Scaling by a power of two is exact: F32 norms and the half-precision scale of a quantised block only
change their exponent. All other weights are copied byte for byte and never quantised again. What
remains is rounding, because the same terms are summed in another order.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec_runtimes.gguf.header import (
    MAGIC,
    GgufFile,
    TensorEntry,
    TensorType,
    ValueType,
    padded,
    read_header,
)
from edgespec_runtimes.gguf.shapes import MAX_LAYERS, validate

if TYPE_CHECKING:
    from edgespec.ports import Progress

MARKER = "edgespec.enlarged_from"
"""Metadata key that an enlarged model carries: the name of the model that it equals."""

FACTORS = (16, 8, 4, 2, 1)
"""Values of K. Beyond 16 a tied head's norm, divided by K**2, leaves activations so small that
their half-precision block scales lose bits."""
FEWEST_LAYERS = 24
COMFORTABLE_LAYERS = 96
TOLERANCE = 0.02
"""How far from the wanted size the result may be."""

CHUNK_BYTES = 8 << 20

F16_SCALES = {
    "F16": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Where in a block the half-precision numbers stand that all its elements are multiples of."""


@dataclass(frozen=True, slots=True)
class EnlargeReport:
    """What was written."""

    path: Path
    size_bytes: int
    factor: int
    """K: how often every feature, query head and hidden unit is repeated."""
    layers: int
    parameters: int


def enlarge(
    source: Path, out: Path, size_bytes: int, progress: Progress | None = None
) -> EnlargeReport:
    """Write to `out` a model of about `size_bytes` that computes what `source` computes.

    Memory stays constant; `out` appears when it is complete. Raises ModelError for a source that
    cannot be enlarged, UsageError for a size that cannot be reached within 2 %, EdgespecError when
    the disk is too small or fails.
    """
    header = read_header(source)
    validate(header)
    shape = _shape(header)
    plan = _choose(header, shape, size_bytes)
    out = Path(out)
    _check_place(header, out, plan.size_bytes)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with part.open("wb", buffering=1 << 20) as file:
            _write(file, header, plan, progress)
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
    except OSError as error:
        raise EdgespecError(f"{out} could not be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return EnlargeReport(out, plan.size_bytes, plan.factor, len(plan.layers), plan.parameters)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Dimensions of a LLaMA, and whether its head is the embedding."""

    embedding: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    layers: int
    vocabulary: int
    tied: bool


@dataclass(frozen=True, slots=True)
class _Role:
    """What a tensor does in a layer, hence how it grows.

    `rows` and `columns` are the lengths of the runs that are repeated K times in place; None leaves
    that direction as it is. The numbers are multiplied by K ** `power`.
    """

    shape: tuple[int, ...]
    columns: int | None = None
    rows: int | None = None
    power: int = 0
    feeds_residual: bool = False

    def grown(self, factor: int) -> tuple[int, ...]:
        runs = (self.columns, self.rows)
        return tuple(
            extent * (factor if run else 1) for extent, run in zip(self.shape, runs, strict=False)
        )


@dataclass(frozen=True, slots=True)
class _Growth:
    """One tensor of the result: where it comes from, or nothing but zeros."""

    name: str
    source: TensorEntry
    role: _Role
    factor: int
    silent: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.role.grown(self.factor)

    @property
    def n_elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.source.type.nbytes(self.n_elements)


@dataclass(frozen=True, slots=True)
class _Layer:
    source: int
    silent: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    factor: int
    layers: tuple[_Layer, ...]
    tensors: tuple[_Growth, ...]
    head: bytes
    """Everything before the weights, padded."""
    alignment: int

    @property
    def size_bytes(self) -> int:
        weights = sum(padded(tensor.nbytes, self.alignment) for tensor in self.tensors)
        return len(self.head) + weights

    @property
    def parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)


def _shape(header: GgufFile) -> _Shape:
    """Dimensions of the source. Raises ModelError unless it is a plain LLaMA."""
    if header.architecture != "llama":
        raise ModelError(
            f"{header.path} is of the architecture {header.architecture}: only llama can be enlarged"
        )
    if header.integer(header.key("expert_count"), 0):
        raise ModelError(
            f"{header.path} is a mixture of experts: only dense models can be enlarged"
        )
    if MARKER in header.metadata:
        raise ModelError(f"{header.path} is enlarged already: start from {header.text(MARKER)}")
    heads = header.integer(header.key("attention.head_count"))
    return _Shape(
        embedding=header.embedding_length,
        ffn=header.integer(header.key("feed_forward_length")),
        heads=heads,
        kv_heads=header.integer(header.key("attention.head_count_kv"), heads),
        head_size=header.integer(
            header.key("attention.key_length"), header.embedding_length // heads
        ),
        layers=header.n_layers,
        vocabulary=header.n_vocab,
        tied="output.weight" not in header.tensors_by_name,
    )


def _model_roles(shape: _Shape) -> dict[str, _Role]:
    residual = shape.embedding
    rotated = (shape.head_size // 2,)
    return {
        "token_embd.weight": _Role((residual, shape.vocabulary), columns=residual, power=1),
        "output_norm.weight": _Role((residual,), columns=residual, power=-2 if shape.tied else -1),
        "output.weight": _Role((residual, shape.vocabulary), columns=residual),
        "rope_freqs.weight": _Role(rotated),
        "rope_factors_long.weight": _Role(rotated),
        "rope_factors_short.weight": _Role(rotated),
    }


def _layer_roles(shape: _Shape) -> dict[str, _Role]:
    residual, ffn = shape.embedding, shape.ffn
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    group = queries // shape.kv_heads  # the query heads that share one KV head
    norm = _Role((residual,), columns=residual, power=-1)
    key_or_value = _Role((residual, keys), columns=residual)
    gate_or_up = _Role((residual, ffn), columns=residual, rows=ffn)
    residual_bias = _Role((residual,), columns=residual, power=1, feeds_residual=True)
    return {
        "attn_norm.weight": norm,
        "attn_q.weight": _Role((residual, queries), columns=residual, rows=group),
        "attn_q.bias": _Role((queries,), columns=group),
        "attn_k.weight": key_or_value,
        "attn_k.bias": _Role((keys,)),
        "attn_v.weight": key_or_value,
        "attn_v.bias": _Role((keys,)),
        "attn_output.weight": _Role(
            (queries, residual), columns=group, rows=residual, feeds_residual=True
        ),
        "attn_output.bias": residual_bias,
        "ffn_norm.weight": norm,
        "ffn_gate.weight": gate_or_up,
        "ffn_gate.bias": _Role((ffn,), columns=ffn),
        "ffn_up.weight": gate_or_up,
        "ffn_up.bias": _Role((ffn,), columns=ffn),
        "ffn_down.weight": _Role((ffn, residual), columns=ffn, rows=residual, feeds_residual=True),
        "ffn_down.bias": residual_bias,
    }


def _choose(header: GgufFile, shape: _Shape, size_bytes: int) -> _Plan:
    """The plan of the fewest layers whose size is right; of the nearest number of layers for its K."""
    fewest = max(FEWEST_LAYERS, shape.layers)
    nearest: _Plan | None = None
    for most in (COMFORTABLE_LAYERS, MAX_LAYERS):
        for factor in FACTORS:
            small, large = (_plan(header, shape, factor, n) for n in (fewest, fewest + 1))
            per_layer = large.size_bytes - small.size_bytes
            n_layers = fewest + round((size_bytes - small.size_bytes) / per_layer)
            plan = _plan(header, shape, factor, min(max(n_layers, fewest), max(most, fewest)))
            miss = abs(plan.size_bytes - size_bytes)
            if miss <= TOLERANCE * size_bytes:
                return plan
            if nearest is None or miss < abs(nearest.size_bytes - size_bytes):
                nearest = plan
    assert nearest is not None
    raise UsageError(
        f"{header.path} cannot be enlarged to {_mib(size_bytes)}: the nearest size is "
        f"{_mib(nearest.size_bytes)}, with {len(nearest.layers)} layers"
    )


def _plan(header: GgufFile, shape: _Shape, factor: int, n_layers: int) -> _Plan:
    layers = _spread(shape.layers, n_layers)
    tensors = tuple(_growths(header, shape, factor, layers))
    head = _head(header, shape, factor, tensors, n_layers)
    return _Plan(factor, layers, tensors, head, header.alignment)


def _spread(n_real: int, n_layers: int) -> tuple[_Layer, ...]:
    """The real layers in their order, evenly spread, each followed by its silent copies."""
    sources = [index * n_real // n_layers for index in range(n_layers)]
    return tuple(
        _Layer(source, silent=index > 0 and sources[index - 1] == source)
        for index, source in enumerate(sources)
    )


def _growths(
    header: GgufFile, shape: _Shape, factor: int, layers: tuple[_Layer, ...]
) -> Iterator[_Growth]:
    """The result's tensors in file order: head and embedding first, then layer by layer."""
    of_layer: dict[int, list[tuple[str, TensorEntry]]] = {n: [] for n in range(shape.layers)}
    model_roles, layer_roles = _model_roles(shape), _layer_roles(shape)
    for tensor in header.tensors:
        block, _, rest = tensor.name.removeprefix("blk.").partition(".")
        if tensor.name.startswith("blk.") and block.isdecimal() and int(block) in of_layer:
            of_layer[int(block)].append((rest, tensor))
        else:
            role = _role(header, tensor, model_roles.get(tensor.name), factor)
            yield _Growth(tensor.name, tensor, role, factor, silent=False)
    for index, layer in enumerate(layers):
        for rest, tensor in of_layer[layer.source]:
            role = _role(header, tensor, layer_roles.get(rest), factor)
            silent = layer.silent and role.feeds_residual
            yield _Growth(f"blk.{index}.{rest}", tensor, role, factor, silent)


def _role(header: GgufFile, tensor: TensorEntry, role: _Role | None, factor: int) -> _Role:
    """The tensor's role, when it is stored in a way that can grow."""
    kind = tensor.type
    if role is None or tensor.shape != role.shape:
        raise ModelError(
            f"{header.path}: {tensor.name} {list(tensor.shape)} is no part of a plain LLaMA, which "
            "is all that can be enlarged"
        )
    if factor > 1 and role.columns is not None and role.columns % kind.block_size:
        raise ModelError(
            f"{header.path}: {tensor.name} would be repeated in runs of {role.columns}, but a "
            f"{kind.name} block holds {kind.block_size}: use another quantisation"
        )
    if factor > 1 and role.power and kind.name not in ("F32", "BF16", *F16_SCALES):
        raise ModelError(
            f"{header.path}: {tensor.name} is stored as {kind.name}, which cannot be scaled: use "
            "another quantisation for it"
        )
    return role


def _head(
    header: GgufFile, shape: _Shape, factor: int, tensors: tuple[_Growth, ...], n_layers: int
) -> bytes:
    """Preamble, metadata and descriptions of the tensors, padded to where the weights begin."""
    changed = _metadata(header, shape, factor, tensors, n_layers)
    kept = [
        entry
        for key, entry in header.entries.items()
        if key not in changed and not key.startswith("split.")
    ]
    preamble = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(kept) + len(changed))
    with header.path.open("rb") as file:
        pairs = [os.pread(file.fileno(), entry.end - entry.start, entry.start) for entry in kept]
    pairs += [_pack_pair(key, kind, value) for key, (kind, value) in changed.items()]
    described, offset = [], 0
    for tensor in tensors:
        extents = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        place = struct.pack("<IQ", tensor.source.type.code, offset)
        described.append(_pack_string(tensor.name) + extents + place)
        offset += padded(tensor.nbytes, header.alignment)
    head = b"".join([preamble, *pairs, *described])
    return head.ljust(padded(len(head), header.alignment), b"\0")


def _metadata(
    header: GgufFile, shape: _Shape, factor: int, tensors: tuple[_Growth, ...], n_layers: int
) -> dict[str, tuple[ValueType, int | float | str]]:
    """The pairs that differ from the source's, and those that it left to llama.cpp's defaults."""
    parameters = sum(tensor.n_elements for tensor in tensors)
    epsilon_key = header.key("attention.layer_norm_rms_epsilon")
    epsilon = header.metadata.get(epsilon_key)
    if not isinstance(epsilon, float):
        raise ModelError(f"{header.path}: metadata has no {epsilon_key}")
    integers = {
        "block_count": n_layers,
        "embedding_length": shape.embedding * factor,
        "feed_forward_length": shape.ffn * factor,
        "attention.head_count": shape.heads * factor,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "rope.dimension_count": shape.head_size,
    }
    return {
        "general.name": (ValueType.STRING, f"{header.name}, enlarged"),
        "general.size_label": (ValueType.STRING, f"{parameters / 1e6:.0f}M"),
        MARKER: (ValueType.STRING, header.name),
        epsilon_key: (ValueType.FLOAT32, epsilon * factor**2),
    } | {header.key(suffix): (ValueType.UINT32, value) for suffix, value in integers.items()}


def _pack_pair(key: str, kind: ValueType, value: int | float | str) -> bytes:
    head = _pack_string(key) + struct.pack("<I", kind)
    if isinstance(value, str):
        return head + _pack_string(value)
    return head + struct.pack("<f" if kind is ValueType.FLOAT32 else "<I", value)


def _pack_string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _check_place(header: GgufFile, out: Path, size_bytes: int) -> None:
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"{out} must be a file in a folder that exists")
    if any(out.exists() and path.samefile(out) for path in header.paths):
        raise UsageError(f"{out} is the source itself: write the enlarged model elsewhere")
    free = shutil.disk_usage(out.parent).free
    if free < size_bytes:
        raise EdgespecError(
            f"{out} needs {_mib(size_bytes)}, {_mib(free)} are free there: choose a smaller size or "
            "another disk"
        )


def _write(file: BinaryIO, header: GgufFile, plan: _Plan, progress: Progress | None) -> None:
    written = file.write(plan.head)
    with ExitStack() as stack:
        sources = [stack.enter_context(path.open("rb", buffering=0)) for path in header.paths]
        for tensor in plan.tensors:
            for piece in _content(sources[tensor.source.file_index], tensor):
                file.write(piece)
            padding = padded(tensor.nbytes, plan.alignment) - tensor.nbytes
            file.write(bytes(padding))
            written += tensor.nbytes + padding
            if progress is not None:
                progress("enlarging", written / plan.size_bytes)


def _content(file: BinaryIO, tensor: _Growth) -> Iterator[bytes | memoryview]:
    """The tensor's bytes, in pieces of about CHUNK_BYTES."""
    if tensor.silent:
        zeros = bytes(min(tensor.nbytes, CHUNK_BYTES))
        for start in range(0, tensor.nbytes, CHUNK_BYTES):
            yield memoryview(zeros)[: tensor.nbytes - start]
        return
    source, role, factor = tensor.source, tensor.role, tensor.factor
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
                    raw = _read(file, source.offset + row * row_bytes, rows * row_bytes)
                    piece_at, piece = row, _grown(raw, rows, tensor)
                yield piece


def _read(file: BinaryIO, offset: int, n_bytes: int) -> bytes:
    raw = os.pread(file.fileno(), n_bytes, offset)
    if len(raw) < n_bytes:
        raise ModelError(f"{file.name} became shorter while it was read")
    return raw


def _grown(raw: bytes, n_rows: int, tensor: _Growth) -> bytes:
    """Rows of the source, scaled and with their runs repeated."""
    role, kind, factor = tensor.role, tensor.source.type, tensor.factor
    if role.power and factor > 1:
        raw = scaled(raw, kind, float(factor) ** role.power)
    if role.columns is None or factor == 1:
        return raw
    runs = np.frombuffer(raw, np.uint8).reshape(n_rows, -1, 1, kind.nbytes(role.columns))
    return np.repeat(runs, factor, axis=2).tobytes()


def scaled(raw: bytes, kind: TensorType, factor: float) -> bytes:
    """Whole blocks of `kind` times a power of two. Raises ModelError when a number gets too big."""
    if kind.name == "F32":
        return (np.frombuffer(raw, "<f4") * np.float32(factor)).tobytes()
    if kind.name == "BF16":
        wide = np.frombuffer(raw, "<u2").astype("<u4") << 16
        return ((wide.view("<f4") * np.float32(factor)).view("<u4") >> 16).astype("<u2").tobytes()
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, kind.block_bytes).copy()
    for at in F16_SCALES[kind.name]:
        scales = blocks[:, at : at + 2].copy().view("<f2").astype(np.float32) * factor
        if not np.all(np.abs(scales) <= np.finfo(np.float16).max):
            raise ModelError(f"weights times {factor:g} do not fit the scales of {kind.name}")
        blocks[:, at : at + 2] = scales.astype("<f2").view(np.uint8)
    return blocks.tobytes()


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):.1f} MiB"
