"""Writes trimmed copies: drafts with only what a draft needs (see `gguf.own_draft.trimmed`).

Does not choose the quantisation or the tokens of the head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgespec.errors import EdgespecError, ModelError, setting
from edgespec.files.cache_folder import lower_parts
from edgespec.files.sampled import sampled_digest
from edgespec.files.unfinished import scratch_folder
from edgespec.memory.process import usable_cores
from edgespec.ports import Progress
from edgespec.registry import vocabulary_fingerprint, without_padding
from edgespec.values import NESTED
from edgespec_runtimes.enlarge.gguf.gguf_writer import (
    CHUNK_BYTES,
    Description,
    NewModel,
    copied_pairs,
    pack_array,
    pack_pair,
    read_bytes,
    write_on,
)
from edgespec_runtimes.enlarge.gguf.nest import CannotNest, LowerParts, split
from edgespec_runtimes.enlarge.gguf.ways import can_be_trimmed, copied_type
from edgespec_runtimes.gguf.file.architectures import Trait, has
from edgespec_runtimes.gguf.file.details import ENLARGED_FROM
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry, read_header
from edgespec_runtimes.gguf.file.layout import (
    EMBEDDINGS,
    MADE_FOR,
    NO_TOKENIZER,
    OUTPUT,
    PER_LAYER_EMBEDDINGS,
    TensorType,
    padded,
)
from edgespec_runtimes.gguf.file.validation import validate
from edgespec_runtimes.gguf.llama import ggml, loading
from edgespec_runtimes.gguf.own_draft.trimmed import TABLE_ROWS, TABLE_TYPE, TOKEN_IDS

_MOST_WEIGHTS = 1 << 18
"""Weights that a thread converts at a time."""
_OUTPUT_BIAS = "output.bias"
_TOKENIZER = "tokenizer."


def check_trimmable(source: Path) -> None:
    """Raise ModelError for a model of which no trimmed copy can be made."""
    header = read_header(source)
    validate(header)
    if not can_be_trimmed(header):
        raise ModelError(
            f"{source.name} is of the architecture {header.architecture}, of which no draft can be "
            "made from the target itself: name a smaller model of its family, or a head, with "
            f"{setting.draft}"
        )


def trim(
    source: Path,
    out: Path,
    kind: str,
    token_ids: Sequence[int],
    progress: Progress | None = None,
) -> None:
    """Write `out`, the trimmed copy of `source` in quantisation `kind`, whose head rates
    `token_ids`, ascending; if it is one of NESTED, of the upper parts of its weights, and beside it
    the lower ones.

    Goes on with what an interrupted call left there. Raises ModelError for a model that cannot be
    trimmed or has no such parts, EdgespecError when the disk is too small or fails.
    """
    check_trimmable(source)
    header, whole = read_header(source), set[str]()
    while True:
        try:
            if kind in NESTED:
                parts = LowerParts(header, kind, whole)
                write_trimmed(source, out, token_ids, progress, parts)
                parts.seal(out)
            else:
                lower_parts(out).unlink(missing_ok=True)  # of another kind that was interrupted
                write_trimmed(source, out, token_ids, progress, kind=kind)
            return
        except CannotNest as error:
            whole.add(str(error))
        except OSError as error:
            raise EdgespecError(f"{out} could not be written: {error.strerror}") from error


def write_trimmed(
    source: Path,
    out: Path,
    token_ids: Sequence[int],
    progress: Progress | None = None,
    parts: LowerParts | None = None,
    kind: str = "",
) -> None:
    """Write `out`, the trimmed copy of `source`: of its weights as they are stored, their upper
    `parts`, or coarse copies of a `kind`. Memory stays constant."""
    header = read_header(source)
    table = header.tensors_by_name[EMBEDDINGS]
    head = replace(header.tensors_by_name.get(OUTPUT, table), name=EMBEDDINGS)
    nested = parts.nesting(head) if parts else None
    table_type = copied_type(table, kind)
    head_type = nested.upper if nested else copied_type(head, kind)

    def head_rows() -> Iterator[bytes]:
        rows = _rows(header, head, token_ids)
        if nested:
            return (upper for upper, _ in split(nested, rows, head.name))
        return _converted(head, rows, head_type)

    described: list[Description] = [(EMBEDDINGS, head_type, (head.shape[0], len(token_ids)))]
    contents: list[Iterable[bytes | tuple[bytes, ...]]] = [head_rows()]
    for tensor in header.tensors:
        if tensor.name in (_OUTPUT_BIAS, PER_LAYER_EMBEDDINGS):
            described.append((tensor.name, tensor.type, (*tensor.shape[:-1], len(token_ids))))
            by_token = replace(tensor, shape=(1, *tensor.shape)[-2:])
            contents.append(_rows(header, by_token, token_ids))
        elif parts and (nesting := parts.nestings.get(tensor.name)):
            described.append((tensor.name, nesting.upper, tensor.shape))
            rows = _rows(header, tensor, range(tensor.shape[1]))
            contents.append(split(nesting, rows, tensor.name))
        elif tensor.name not in (EMBEDDINGS, OUTPUT):
            described.append((tensor.name, copied_type(tensor, kind), tensor.shape))
            contents.append(_copied(header, tensor, kind))
    pairs = [*_pairs(header, table, table_type, token_ids), *([parts.source] if parts else ())]
    names = header.tensors_by_name
    tables = [names[one] for one in (EMBEDDINGS, PER_LAYER_EMBEDDINGS) if one in names]
    sizes = (copied_type(one, kind).nbytes(math.prod(one.shape)) for one in tables)
    tail_bytes = sum(padded(nbytes, header.alignment) for nbytes in sizes)
    model = NewModel(pairs, described, header.alignment, tail_bytes)
    # some graphs have an output of their own, and others look up more than embeddings
    if has(header, Trait.ADDS_TO_TOKENS) or not _can_be_opened(model, out):
        described.insert(1, (OUTPUT, *described[0][1:]))
        contents.insert(1, head_rows())
        model = replace(model, tensors=described)
    contents += [_copied(header, one, kind) for one in tables]
    models = {out: model} | ({lower_parts(out): parts.model} if parts else {})
    write_on(models, contents, "writing the draft", progress, sampled_digest(header.paths))


def _copied(header: GgufFile, tensor: TensorEntry, kind: str) -> Iterator[bytes]:
    """A tensor in a coarse copy of this kind, in pieces."""
    rows = _rows(header, tensor, range(math.prod(tensor.shape[1:])))
    return _converted(tensor, rows, copied_type(tensor, kind))


def _converted(tensor: TensorEntry, pieces: Iterable[bytes], coarse: TensorType) -> Iterator[bytes]:
    """Rows of a tensor, of which each of the `pieces` has some, in another type."""
    if coarse is tensor.type:
        yield from pieces
        return
    n_in, to_float = tensor.shape[0], ggml.to_float(tensor.type.code)
    row_bytes = tensor.type.nbytes(n_in)
    n_bytes = max(1, _MOST_WEIGHTS // n_in) * row_bytes

    def convert(raw: bytes) -> bytes:
        values = np.empty((len(raw) // row_bytes, n_in), np.float32)
        to_float(np.frombuffer(raw, np.uint8).ctypes.data, values.ctypes.data, values.size)
        return ggml.quantised(coarse.code, values)

    with ThreadPoolExecutor(usable_cores()) as pool:
        for piece in pieces:
            starts = range(0, len(piece), n_bytes)
            yield from pool.map(convert, [piece[at : at + n_bytes] for at in starts])


def _can_be_opened(model: NewModel, out: Path) -> bool:
    """True if llama.cpp finds all tensors that it asks for in the header of `model`, of which a
    file without weights is written beside `out` meanwhile."""
    with scratch_folder(out.parent) as folder:
        path = folder / "header.gguf"
        with path.open("wb") as file:
            file.write(model.head)
            file.truncate(model.size_bytes)
        try:
            loading.load_sizes_only(path).close()
        except ModelError:
            return False
        return True


def _pairs(
    header: GgufFile, table: TensorEntry, table_type: TensorType, token_ids: Sequence[int]
) -> list[bytes]:
    """The metadata without the tokenizer, and with what describes a trimmed copy."""
    vocab_size, tokenizer = header.key("vocab_size"), "tokenizer.ggml.model"
    fingerprint = vocabulary_fingerprint(without_padding(header.token_table()))
    new = {
        tokenizer: pack_pair(tokenizer, NO_TOKENIZER),
        vocab_size: pack_pair(vocab_size, len(token_ids)),
        MADE_FOR: pack_pair(MADE_FOR, fingerprint),
        TABLE_TYPE: pack_pair(TABLE_TYPE, table_type.code),
        TABLE_ROWS: pack_pair(TABLE_ROWS, table.shape[1]),
        TOKEN_IDS: pack_array(TOKEN_IDS, token_ids),
    }
    dropped = {key: b"" for key in header.entries if key.startswith((_TOKENIZER, ENLARGED_FROM))}
    return [pair for pair in copied_pairs(header, dropped | new) if pair]


def _rows(header: GgufFile, tensor: TensorEntry, rows: Sequence[int]) -> Iterator[bytes]:
    """Rows of a tensor as they are stored; neighbours are read together."""
    row_bytes = tensor.type.nbytes(tensor.shape[0])
    path, begin = header.paths[tensor.file_index], 0
    while begin < len(rows):
        end = begin + 1
        while (
            end < len(rows)
            and rows[end] == rows[end - 1] + 1
            and (end - begin) * row_bytes < CHUNK_BYTES
        ):
            end += 1
        offset = tensor.offset + rows[begin] * row_bytes
        yield read_bytes(path, offset, (end - begin) * row_bytes)
        begin = end
