"""Makes a draft from the target itself: a subset of its layers, in a coarser quantisation.

The layers to remove are chosen by measuring agreement, the share of the target's tokens that the
draft ranks first. Knows no format; a tool removes layers and quantises.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec import runtimes
from edgespec.errors import UsageError
from edgespec.files.unfinished import scratch_folder
from edgespec.memory.budget import MemoryPlan
from edgespec.models import pair_fit
from edgespec.ports import Progress
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec.tools import ModelTool, load_tool
from edgespec.values import GenerationResult

BITS = {
    "F16": 16.0,
    "Q8_0": 8.5,
    "Q6_K": 6.6,
    "Q5_K_M": 5.7,
    "Q4_K_M": 4.9,
    "Q4_0": 4.5,
    "Q3_K_M": 4.0,
    "Q2_K": 3.4,
}
"""Average bits per weight by type, for estimates; written files are measured."""
SEARCH_TYPE = "Q4_0"
WIDTH = 3
"""Beam of the greedy search: the layers whose removal alone costs least agreement are tried."""
SPARE = 2
"""Additional layers to rank for removal, because sizes by type are only estimates."""
SHARE = 0.25
"""Default size of a draft as a share of the target's."""

_LOADED = pair_fit.LOADED_FOR


@dataclass(frozen=True, slots=True)
class SelfDraft:
    """A draft that was made and measured."""

    type: str
    layers: tuple[int, ...]
    """Remaining layers of the target, ascending."""
    size_bytes: int
    agreement: float
    """Share of the target's tokens that it ranks first."""


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """Memory of a draft under a budget, and its cost for the target."""

    budget_bytes: int
    draft_bytes: int
    """Bytes of the draft with its KV and buffers."""
    max_bytes: int
    """Largest draft that the budget allows beside the target."""
    read_bytes: int
    """Bytes that a pass of the target reads with this draft."""
    read_alone_bytes: int
    """Bytes that a pass of the target reads without a draft."""


def draft_memory(alone: MemoryPlan, pair: MemoryPlan) -> DraftMemory:
    """Memory of a draft, from plans under the same budget for the target alone and for the pair."""
    draft_bytes = sum(row.nbytes for row in pair.rows if row.owner == "draft")
    return DraftMemory(
        pair.budget_bytes,
        draft_bytes,
        pair.budget_bytes - pair.smallest_bytes + draft_bytes,
        pair.bytes_per_pass,
        alone.bytes_per_pass,
    )


@dataclass(frozen=True, slots=True)
class DraftJob:
    """Size and types of the draft to make, and texts to measure it on."""

    size_bytes: int
    types: tuple[str, ...]
    prompts: tuple[str, ...]
    max_tokens: int
    load: LoadSettings
    """Budget, context and threads of the target."""


def make(
    target: Path, out: Path, job: DraftJob, progress: Progress
) -> tuple[SelfDraft, tuple[SelfDraft, ...]]:
    """Write the best draft to `out`; returns it and all candidates, best first.

    The target generates its texts once, paged if it does not fit. Raises UsageError if no draft has
    the size, ModelError if layers cannot be removed, EdgespecError for a full disk.
    """
    tool = load_tool()
    if not tool.recognises(target):
        raise UsageError(
            f"{target}: drafts are made from GGUF models: name the GGUF twin of this one, and use "
            "the draft with either"
        )
    with scratch_folder(out.parent) as folder:
        search = _DraftSearch(target, job, tool, folder, progress)
        drafts = search.candidates()
        if not drafts:
            raise UsageError(
                f"no draft of {target.name} is as small as {job.size_bytes / 2**20:.0f} MiB: "
                "raise --size, or name a coarser type with --types"
            )
        drafts.sort(key=lambda draft: (-draft[0].agreement, draft[0].size_bytes))
        shutil.move(drafts[0][1], out)
        return drafts[0][0], tuple(draft for draft, _ in drafts)


class _DraftSearch:
    """Searches for the layers to remove, with candidate files in `folder`."""

    def __init__(
        self, target: Path, job: DraftJob, tool: ModelTool, folder: Path, progress: Progress
    ) -> None:
        self._target = target
        self._job = job
        self._tool = tool
        self._folder = folder
        self._progress = progress
        self._texts = self._write_texts()
        self._n_layers = tool.n_layers(target)
        self._done = 0
        self._due = 1

    def candidates(self) -> list[tuple[SelfDraft, Path]]:
        """The best draft of each type that fits the size."""
        n_fitting = {kind: self._n_fitting(kind) for kind in self._job.types}
        n_fitting = {kind: n for kind, n in n_fitting.items() if n > 0}
        if not n_fitting:
            return []
        left_out = self._order(max(1, min(n_fitting.values()) - SPARE))
        drafts = (self._largest(kind, n, left_out) for kind, n in n_fitting.items())
        return [draft for draft in drafts if draft]

    def _largest(
        self, kind: str, n_layers: int, left_out: Sequence[int]
    ) -> tuple[SelfDraft, Path] | None:
        """The largest draft of this type with at most `n_layers` layers that fits the size."""
        for n_out in range(self._n_layers - n_layers, len(left_out) + 1):
            layers = self._without(left_out[:n_out])
            path = self._stored(layers, kind)
            size = path.stat().st_size
            if size <= self._job.size_bytes:
                return SelfDraft(kind, tuple(layers), size, self._agreement(path)), path
            path.unlink()
        return None

    def _order(self, fewest: int) -> list[int]:
        """Layers in the order of their removal, until `fewest` remain."""
        n_out = self._n_layers - fewest
        if n_out <= 0:
            return []
        self._due = self._n_layers + WIDTH * n_out
        search = self._tool.quantise(self._target, self._folder, SEARCH_TYPE, self._progress)
        try:
            alone = {
                layer: self._agreement_of(search, self._without([layer]))
                for layer in range(self._n_layers)
            }
            order: list[int] = []
            while len(order) < n_out:
                rest = sorted(self._without(order), key=lambda layer: -alone[layer])[:WIDTH]
                if not order or len(rest) == 1:
                    order.append(rest[0])
                    continue
                found = {
                    layer: self._agreement_of(search, self._without([*order, layer]))
                    for layer in rest
                }
                order.append(max(rest, key=found.__getitem__))
            return order
        finally:
            search.unlink(missing_ok=True)

    def _without(self, left_out: Sequence[int]) -> list[int]:
        return [layer for layer in range(self._n_layers) if layer not in set(left_out)]

    def _n_fitting(self, kind: str) -> int:
        """Estimated number of layers that fit the size in this type."""
        fixed = self._tool.weight_bytes(self._target, ())
        layers = self._tool.weight_bytes(self._target, range(self._n_layers)) - fixed
        scale = BITS[kind] / self._bits_of_target()
        room = self._job.size_bytes - scale * fixed
        return min(self._n_layers, int(room / max(1.0, scale * layers / self._n_layers)))

    def _bits_of_target(self) -> float:
        parameters = runtimes.describe(self._target).parameters
        size = self._tool.weight_bytes(self._target, range(self._n_layers))
        return 8 * size / (parameters or size)

    def _stored(self, layers: Sequence[int], kind: str) -> Path:
        shorter = self._folder / f"cut-{len(layers)}.gguf"
        self._tool.subset(self._target, shorter, layers, self._progress)
        try:
            return self._tool.quantise(shorter, self._folder, kind, self._progress)
        finally:
            shorter.unlink()

    def _agreement_of(self, source: Path, layers: Sequence[int]) -> float:
        candidate = self._folder / "candidate.gguf"
        self._tool.subset(source, candidate, layers)
        try:
            self._done += 1
            self._progress("choosing layers", min(1.0, self._done / self._due))
            return self._agreement(candidate)
        finally:
            with suppress(OSError):
                candidate.unlink()

    def _agreement(self, path: Path) -> float:
        """Share of the texts' tokens that the model at `path` ranks first."""
        settings = self._job.load.model_copy(update={"model": path, "draft": None})
        with session.open_models(settings, _LOADED) as models:
            n_vocab = models.target.info.n_vocab
            compared, agreed = pair_fit.count_agreements(models.target, self._texts, n_vocab)
        return agreed / max(compared, 1)

    def _write_texts(self) -> list[GenerationResult]:
        settings = self._job.load.model_copy(update={"model": self._target, "draft": None})
        with session.open_models(settings, _LOADED, self._progress) as models:
            prompts = [models.target.vocabulary.encode(text) for text in self._job.prompts]
            return pair_fit.target_texts(
                models.target, None, prompts, self._job.max_tokens, self._progress
            )
