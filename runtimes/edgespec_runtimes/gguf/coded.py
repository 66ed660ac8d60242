"""Whether a target's weights are read from a coded copy of them, and from which.

Knows where copies are and what speaks for one; how a copy is written and read is elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from edgespec import theory
from edgespec.errors import EdgespecError, ModelError, UsageError, WeightReadError
from edgespec.files import cache_folder
from edgespec.files.fingerprint import fingerprint
from edgespec.paging import coding, disk_speed
from edgespec.paging.coded_file import CodedFile, open_coded
from edgespec.paging.coded_reader import CodedIndex, decoded_bytes_per_s
from edgespec.paging.reader import Extent
from edgespec.units import format_rate
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry

HALF_PRECISION = frozenset({"F16", "BF16"})
WARMING_S, SAMPLE_S = 0.1, 0.25
FAST_BYTES_PER_S = 1.5e9
"""No core decodes so fast that there is a choice: a glance is enough."""
HOW = "`edgespec models code` writes one"


@dataclass(frozen=True, slots=True)
class Choice:
    """What weights are read from."""

    index: CodedIndex | None = None
    """None: from the model's own files."""
    note: str = ""
    """Why, where there is a copy."""


def matrices(header: GgufFile) -> tuple[Extent, ...]:
    """What a coded copy holds: half-precision matrices, but no tables of which only rows are looked
    up, and no stacked experts, which are read one by one."""
    is_tied = "output.weight" not in header.tensors_by_name
    return tuple(
        Extent(tensor.file_index, tensor.offset, tensor.nbytes)
        for tensor in header.tensors
        if tensor.type.name in HALF_PRECISION
        and len(tensor.shape) == 2
        and (not tensor.name.endswith("token_embd.weight") or _is_head(tensor, is_tied))
    )


def _is_head(tensor: TensorEntry, is_tied: bool) -> bool:
    return is_tied and tensor.name == "token_embd.weight"


def choose(header: GgufFile, wanted: str, streamed_share: float) -> Choice:
    """What `--weights-coded` means for a model: `auto`, `on`, `off`, or the file of a copy.
    `streamed_share` is what of its weights will be read in every pass, at least.

    Raises UsageError for a copy that is asked for and not there, or cannot be read here, and
    ModelError for one that is damaged or of another model. What `auto` finds is used only where it
    pays, as far as that is known.
    """
    if wanted == "off" or (wanted == "auto" and streamed_share <= 0):
        return Choice()
    if wanted != "auto":
        found = _copy_of(header) if wanted == "on" else (Path(wanted), fingerprint(header.paths))
        if found is None:
            raise UsageError(
                f"--weights-coded on: there is no coded copy of {header.path.name}, as it is now, "
                f"in {cache_folder.coded()}: {HOW}"
            )
        coding.check_installed()
        coded = _opened(*found, header)
        return Choice(CodedIndex(coded), _what(coded))
    try:
        found = _copy_of(header)
        if found is None:
            return Choice()
        coding.check_installed()
        coded = _opened(*found, header)
        index = CodedIndex(coded)
        is_faster, why = _weigh(header.path, index, streamed_share)
    except (EdgespecError, OSError) as error:
        return Choice(None, f"the coded copy of the weights is not used: {error}")
    if is_faster:
        return Choice(index, f"{_what(coded)}: {why}")
    return Choice(None, f"the coded copy of the weights is not used: {why}")


def _what(coded: CodedFile) -> str:
    return f"half-precision weights are read coded, {coded.share:.2f} of their bytes"


def _copy_of(header: GgufFile) -> tuple[Path, str] | None:
    """In the cache folder, and the model's fingerprint. The model is looked at more closely only
    where a copy may be its own."""
    there = cache_folder.coded_copies(header.size_bytes)
    if not there:
        return None
    source = fingerprint(header.paths)
    name = cache_folder.coded_copy(header.path, header.size_bytes, source).name
    ending = name.rsplit("-", 1)[1]
    path = next((path for path in there if path.name.endswith(f"-{ending}")), None)
    return None if path is None else (path, source)


def _opened(path: Path, source: str, header: GgufFile) -> CodedFile:
    """`source` is the model's fingerprint."""
    coded = open_coded(path)
    if coded.source != source or not set(coded.extents) <= set(matrices(header)):
        raise ModelError(
            f"{path} is no copy of {header.path}, or of what that was before: `edgespec models "
            "code` writes one of what it is now"
        )
    coded_ns = path.stat().st_mtime_ns
    if any(file.stat().st_mtime_ns > coded_ns for file in header.paths):
        # a fingerprint is of samples: between them weights may have changed
        raise ModelError(
            f"{header.path} was written after its coded copy {path}, which may hold other weights: "
            "`edgespec models code --force` writes it anew"
        )
    return coded


def _weigh(model: Path, index: CodedIndex, streamed_share: float) -> tuple[bool, str]:
    """Whether reading the copy is faster than reading the model, and why."""
    rates = _storage(model, index.coded.path)
    if rates is None:
        return False, f"{model.name} is too small to tell how fast its storage is"
    share, decoded = index.coded.share, decoded_bytes_per_s(index)
    coded_s = theory.coded_seconds(share, rates[1], decoded)
    limit = theory.decoding_pays_below(share, decoded, streamed_share)
    why = f"storage gives {format_rate(rates[0])}, and it pays below {format_rate(limit)} here"
    if rates[1] != rates[0]:
        why += f"; that of the copy gives {format_rate(rates[1])}"
    return rates[0] < limit and coded_s < 1 / rates[0], why


@lru_cache(maxsize=8)
def _storage(model: Path, copy: Path) -> tuple[float, float] | None:
    """Bytes a second that a model and its copy are read with, measured once in a process: whoever
    plans many times is to get the same plans."""
    try:
        plain = _steady_bytes_per_s(model)
        is_same = model.stat().st_dev == copy.stat().st_dev
        coded = plain if is_same else _steady_bytes_per_s(copy)
    except (OSError, WeightReadError):
        return None
    return None if plain is None or coded is None else (plain, coded)


def _steady_bytes_per_s(path: Path) -> float | None:
    """After what storage gives in a first moment: limits let more through that were not used."""
    first = disk_speed.bytes_per_second(path, WARMING_S)
    is_clear = first is None or first > FAST_BYTES_PER_S
    return first if is_clear else disk_speed.bytes_per_second(path, SAMPLE_S)
