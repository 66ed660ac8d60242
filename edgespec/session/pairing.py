"""Judges a draft before it is loaded: its vocabulary, the texts that it follows, and its worth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from edgespec import registry
from edgespec.errors import ModelError, PairError, UsageError, setting
from edgespec.memory.budget import MemoryPlan
from edgespec.registry import PreparedModel
from edgespec.settings.config import LoadSettings
from edgespec.settings.units import format_size

MIN_GAIN = 1.05
"""Least gain of speed without a draft that is told."""


def check_head(settings: LoadSettings, target: PreparedModel, head: PreparedModel) -> None:
    """Raise ModelError for a target without hidden states for the head, and UsageError if the head
    stands in the way of several texts."""
    if not target.info.gives_features:
        raise ModelError(
            f"{target.info.name} does not give its hidden states, which the head "
            f"{head.info.name} reads: name a GGUF target, or a whole model as the draft"
        )
    is_own = settings.draft == settings.model
    if target.info.n_slots > 1 and (is_own or settings.optional_draft):
        what = "its layer for guessing" if is_own else "a head"
        raise UsageError(
            f"{what} follows one text, and {setting.n_parallel} asks for {target.info.n_slots}"
        )


def note_on_texts(
    settings: LoadSettings, models: Sequence[PreparedModel], n_parallel: int
) -> str | None:
    """A note if fewer texts are generated at once than were asked for, because of the head or
    the target."""
    wanted = settings.n_parallel
    if wanted == "auto" or wanted <= n_parallel:
        return None
    is_head = models[-1].info.reads_features
    model = f"the head {models[-1].info.name}" if is_head else models[0].info.name
    return f"{model} serves one text at a time: {setting.n_parallel(wanted)} waits in line"


def check_pair(target: PreparedModel, draft: PreparedModel) -> None:
    """Raise PairError at the first token id that has different text in the two models."""
    if draft.vocabulary_fingerprint is not None:
        if registry.vocabulary_fingerprint(target.tokens()) != draft.vocabulary_fingerprint:
            raise PairError(
                f"{draft.info.name} was made from a model with another vocabulary than "
                f"{target.info.name}: make a draft from this target (edgespec models draft)"
            )
        return
    for token, (left, right) in enumerate(zip_longest(target.tokens(), draft.tokens())):
        if left != right:
            raise PairError(
                f"draft and target have different vocabularies: token {token} is {_shown(left)} "
                f"in {target.info.name} and {_shown(right)} in {draft.info.name}: "
                "choose a draft of the target's family"
            )


def _shown(token: bytes | None) -> str:
    return "missing" if token is None else repr(token.decode(errors="replace"))


def note_on_worth(name: str, paired: MemoryPlan, alone: MemoryPlan, gain: float) -> str:
    """A sentence about the draft `name`, without which `gain` times the speed is expected."""
    draft_bytes = sum(row.nbytes for row in paired.rows if row.owner == "draft")
    reads = format_size(alone.bytes_per_pass) if alone.bytes_per_pass else "nothing"
    speed = "all weights stay in memory then"
    if gain < MIN_GAIN:
        speed = "no speed is expected to be gained"
    elif alone.bytes_per_pass:
        speed = f"{gain:.1f} times the speed is expected without it"
    return (
        f"{name} takes {format_size(draft_bytes)}, with which a pass reads "
        f"{format_size(paired.bytes_per_pass)}, and without it {reads}: {speed}"
    )
