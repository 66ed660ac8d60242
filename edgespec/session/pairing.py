"""Judges a draft before it is loaded: its vocabulary, the texts that it follows, and its worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgespec import runtimes
from edgespec.engine.state_store import Learnt, StateStore
from edgespec.errors import ModelError, PairError, UsageError
from edgespec.files import cache_folder
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.draft_worth import DRAFT_MODEL, note_before_loading
from edgespec.paging import disk_speed
from edgespec.runtimes import PreparedModel
from edgespec.session import strategy
from edgespec.settings.config import LoadSettings
from edgespec.settings.units import format_size
from edgespec.values import ModelInfo

SAMPLE_S = 0.1
"""Seconds for measuring the disk."""
BYTES_PER_TOKEN = 800
"""Memory of a draft per token of the vocabulary: logits of its nodes and of the target's, and the
tokens themselves."""
AMPLE_BYTES, AMPLE_FACTOR = 1 << 30, 3


def check_one_text(target: ModelInfo, what: str) -> None:
    """Raise UsageError if `what`, a draft that follows one text, stands in the way of several."""
    if target.n_slots > 1:
        raise UsageError(f"{what} follows one text, and `n_parallel` asks for {target.n_slots}")


def check_head(settings: LoadSettings, target: PreparedModel, head: PreparedModel) -> None:
    """Raise ModelError for a target without hidden states for the head, and UsageError if the head
    stands in the way of several texts."""
    if not target.info.gives_features:
        raise ModelError(
            f"{target.info.name} does not give its hidden states, which the head "
            f"{head.info.name} reads: name a GGUF or ONNX target, or a whole model as "
            "the draft"
        )
    if settings.draft == settings.model:
        check_one_text(target.info, "its layer for guessing")
    elif settings.optional_draft:
        check_one_text(target.info, "a head")


def note_on_texts(
    settings: LoadSettings, models: Sequence[PreparedModel], n_parallel: int, rule: str | None
) -> str | None:
    """A note if fewer texts are generated at once than were asked for, because of the acceptance
    `rule`, if that is one, the head or the target."""
    wanted = settings.n_parallel
    if wanted == "auto" or wanted <= n_parallel:
        return None
    is_head = models[-1].info.reads_features
    model = f"the head {models[-1].info.name}" if is_head else models[0].info.name
    return f"{rule or model} serves one text at a time: `n_parallel={wanted}` waits in line"


def check_pair(target: PreparedModel, draft: PreparedModel) -> None:
    """Raise PairError at the first token id that has different text in the two models."""
    if draft.vocabulary_fingerprint is not None:
        if runtimes.vocabulary_fingerprint(target.tokens()) != draft.vocabulary_fingerprint:
            raise PairError(
                f"{draft.info.name} was made from a model with another vocabulary than "
                f"{target.info.name}: make a draft from this target (edgespec models draft)"
            )
        return
    ours, theirs = target.tokens(), draft.tokens()
    for token, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if left != right:
            raise PairError(
                f"draft and target have different vocabularies: token {token} is {_shown(left)} "
                f"in {target.info.name} and {_shown(right)} in {draft.info.name}: "
                "choose a draft of the target's family"
            )
    if len(ours) != len(theirs):
        raise PairError(
            f"draft and target have different vocabularies: token {min(len(ours), len(theirs))} is "
            f"in only one of them ({len(ours)} tokens in {target.info.name}, {len(theirs)} in "
            f"{draft.info.name}): choose a draft of the target's family"
        )


def _shown(token: bytes) -> str:
    return repr(token.decode(errors="replace"))


def draft_file(settings: LoadSettings) -> Path | None:
    """The file of a draft that is a model of its own, else None."""
    draft = settings.draft
    return draft if draft is not None and draft != settings.model and draft.is_file() else None


def ample_bytes(target: Path, draft: Path) -> int:
    """A budget with which both models stay in memory, in all likelihood."""
    return AMPLE_BYTES + AMPLE_FACTOR * (target.stat().st_size + draft.stat().st_size)


def expected_row(target: ModelInfo, draft: Path) -> MemoryRow:
    """The memory that a draft will take, about, with all that comes with it."""
    nbytes = draft.stat().st_size + BYTES_PER_TOKEN * target.n_vocab
    return MemoryRow(DRAFT_MODEL, "weights, buffers and vocabulary", nbytes)


def described(draft: Path) -> ModelInfo | None:
    """Description of a draft by its file; None if its runtime has to open it for that."""
    try:
        return runtimes.describe(draft).info
    except ModelError:
        return None


def left_out(name: str, paired: MemoryPlan, alone: MemoryPlan, gain: float) -> str:
    """A note about a draft that is left out because it does not pay."""
    said = note_before_loading(name, paired, alone, gain)
    return f"{said}, so that it is left out (`draft` asks for it)"


def does_not_fit(draft: Path, target: Path, row: MemoryRow, budget_bytes: int) -> str:
    """A note about a draft that is left out because the budget does not hold both models."""
    return (
        f"{draft.stem} does not guess for {target.name}: the memory budget of "
        f"{format_size(budget_bytes)} does not leave the {format_size(row.nbytes)} that it needs"
    )


def gain_without_draft(
    paired: MemoryPlan,
    alone: MemoryPlan,
    models: tuple[ModelInfo, ModelInfo | None],
    file: Path,
    remembers: bool,
) -> float:
    """Expected speed under the plan `alone`, relative to that of the pair; 0 if unknown.

    `file` is the target's, of which a sample is read. What earlier runs of the pair have stored
    counts if `remembers`.
    """
    disk = disk_speed.bytes_per_second(file, SAMPLE_S) if paired.paged else None
    if disk is None:  # nothing is read, a small model, or a folder of files
        return 0.0
    target, draft = models
    learnt: Learnt = {}
    if remembers and draft is not None:
        learnt = StateStore(cache_folder.calibrations(), target, draft).recall()
    draft_bytes = draft.size_bytes if draft is not None else 0
    return strategy.gain_without_draft(paired, alone, target, draft_bytes, disk, learnt)
