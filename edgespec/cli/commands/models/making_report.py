"""Lines of text about models that were made: values in, lines out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.cli.commands.models import describing
from edgespec.settings.units import format_size
from edgespec.tables import Column, Table

if TYPE_CHECKING:
    from edgespec.models.draft_training import AdaptationResult
    from edgespec.models.pair_fit import PairFit
    from edgespec.models.self_draft import DraftMemory, SelfDraft
    from edgespec.session.own_draft import OwnDraft
    from edgespec.values import EnlargeReport


def enlarged_line(written: EnlargeReport) -> str:
    return (
        f"{written.path}: {format_size(written.size_bytes)}, {written.layers} layers, "
        f"{describing.rounded(written.parameters)} parameters"
    )


def drafts_table(compared: Sequence[SelfDraft], out: Path) -> list[str]:
    """Table of the candidate drafts, the best and written one first."""
    columns: list[Column[SelfDraft]] = [
        Column("type", "type", lambda draft: draft.type, is_left=True),
        Column("layers", "layers", lambda draft: len(draft.layers)),
        Column("size_bytes", "size", lambda draft: format_size(draft.size_bytes)),
        Column("agreement", "top-1 agreement", lambda draft: f"{draft.agreement:.1%}"),
    ]
    best = compared[0]
    kept = ", ".join(map(str, best.layers))
    written = f"{out}: {best.type}, the target's layers {kept}"
    return [*Table(columns, compared).lines(), written, ""]


def own_draft_lines(made: OwnDraft, target: Path, out: Path) -> list[str]:
    """Lines about a draft made from its target, with what was measured."""
    return [
        f"{out}: {target.name} in {made.kind}, {format_size(made.size_bytes)}",
        f"{made.tokens_per_pass:.2f} tokens per pass, {made.tokens_per_s:.2f} tokens/s under "
        f"{format_size(made.budget_bytes)}; {made.alone_tokens_per_s:.2f} without a draft",
        f"{made.missing_share:.1%} of the texts' tokens are not among those that it can guess",
    ]


def room_line(room: DraftMemory) -> str:
    """One line about the memory for a draft beside the target."""
    return (
        f"Of the budget of {format_size(room.budget_bytes)} the draft takes "
        f"{format_size(room.draft_bytes)}, weights, KV and buffers; the target leaves room for "
        f"{format_size(room.max_bytes)}. A pass reads {format_size(room.read_bytes)}, without "
        f"the draft {format_size(room.read_alone_bytes)}.\n"
    )


def adapted_lines(
    adapted: AdaptationResult, before: PairFit, after: PairFit, out: Path
) -> list[str]:
    """Lines about the training of an adapted draft, and its effect."""
    old, new = before.largest_tree.tokens_per_pass, after.largest_tree.tokens_per_pass
    lines = [
        f"Learnt {adapted.n_tokens:,} tokens of {adapted.n_texts} answers, in "
        f"{adapted.n_corrections:,} places the target's distribution.",
        f"Tokens per pass with {after.largest_tree.drafted_nodes} guesses of the draft: {old:.2f} "
        f"before, {new:.2f} after ({100 * (new / old - 1):+.0f} %).",
        f"{out}: use it with -md {out}",
    ]
    if new <= old:
        lines[-1] = f"{out} guesses these texts no better: more or other texts may help."
    return lines
