"""Settings of the engine: rules by name, and limits of trees and passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from edgespec.engine.acceptance import ACCEPTANCE_RULES, AcceptanceRule
from edgespec.engine.planning.pacer import PACERS, Limits, LinearPacer, Pacer
from edgespec.engine.stop_rules import STOP_RULES, StopRule
from edgespec.errors import UsageError
from edgespec.ports import PassPart
from edgespec.settings.base import Names, PythonNames
from edgespec.settings.config import (
    USUAL_DRAFT_MAX,
    ContextEnd,
    GenerateSettings,
    Speculation,
)
from edgespec.settings.options import added
from edgespec.settings.rule_names import ADDED_ACCEPTANCE
from edgespec.values import ModelInfo

PROVISIONAL_FACTOR = 8
"""Capacity of a tree, as a multiple of the nodes of one pass."""


class EngineSettings(Speculation, ContextEnd):
    """Names of the engine's rules, and options of drafting."""

    names: ClassVar[Names] = PythonNames()

    pins_draft_max: bool = False
    """Use `draft_max` even if it is the default, instead of the number that the memory plan
    chooses; other values are always used."""
    n_candidates: int = Field(default=8, ge=1)
    """Number of successors of a node that the pacer chooses from."""
    draft_temperature: float = Field(default=0.6, gt=0)
    """Initial T of the confidences softmax(draft logits / T), unless the target samples at a higher
    one; T is learnt from accepted guesses."""
    overlap: bool = True
    """Draft during a pass while it waits for reads."""
    remember: bool = True
    """Load the learnt state of earlier runs of this pair and store it at the end, in a small file
    in the cache folder. It influences guesses, never the text."""
    step_aside: bool = True
    """Decode without the draft while that is measured to be faster."""

    if TYPE_CHECKING:  # pydantic converts names of rules, which type checkers do not know

        def __init__(self, **settings: Any) -> None: ...

    @classmethod
    def of(cls, text: GenerateSettings) -> EngineSettings:
        """The engine's part of the settings of a text."""
        shared = text.model_dump(include=cls.model_fields.keys() & text.known())
        return cls(
            **shared,
            pins_draft_max="draft_max" in text.model_fields_set,
            overlap=not text.no_overlap,
        )

    def but(self, **changed: Any) -> EngineSettings:
        """These settings with some others."""
        return type(self).model_validate(self.model_dump() | changed)

    @model_validator(mode="after")
    def _settle(self) -> Self:
        if self.lookup and self.draws_guesses:
            raise UsageError(
                f"the acceptance rule {self.acceptance} compares probabilities, and guesses looked "
                "up in the text have none: leave out lookup"
            )
        if self.draft_max != USUAL_DRAFT_MAX:
            object.__setattr__(self, "pins_draft_max", True)
        return self

    @property
    def unusual(self) -> str:
        """Settings that differ from their defaults, as text; part of the cache key of costs."""
        changed = {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name not in {"remember", "learn", *ContextEnd.model_fields}
            and getattr(self, name) != field.default
        }
        return ", ".join(f"{name}={value}" for name, value in changed.items())

    @property
    def acceptance_rule(self) -> type[AcceptanceRule]:
        """The acceptance rule by name, ours or another package's."""
        rule = ACCEPTANCE_RULES.get(self.acceptance)
        return rule or added(ADDED_ACCEPTANCE)[self.acceptance]

    @property
    def draws_guesses(self) -> bool:
        """True if the acceptance rule needs guesses drawn from the draft's own distribution."""
        return self.acceptance_rule.growth is not None

    @property
    def may_overlap(self) -> bool:
        """True if drafting during a pass is allowed. It is not with drawn guesses, which must all
        be verified."""
        return self.overlap and not self.draws_guesses

    def max_nodes(self, info: ModelInfo) -> int:
        """Most nodes of one pass of this target, the root included."""
        return min(info.max_nodes, 1 + self.draft_max) if self.pins_draft_max else info.max_nodes

    def pacer_for(self, info: ModelInfo) -> Pacer:
        """The pacer by name; one that grows a line for a target that verifies no more."""
        return PACERS[self.pacer]() if info.max_branches > 1 else LinearPacer()

    def new_stop_rule(self) -> StopRule | None:
        """The stop rule by name; None if the round planner decides."""
        rule = STOP_RULES.get(self.fallback)
        return None if rule is None else rule()

    def rules_for(self, info: ModelInfo) -> RoundRules:
        """The rules and limits of rounds over this target."""
        max_nodes = self.max_nodes(info)
        longest = max_nodes - 1 if info.tree_capable else info.max_rollback
        return RoundRules(
            pacer=self.pacer_for(info),
            acceptance=self.acceptance_rule(),
            max_nodes=max_nodes,
            max_rows=max(max_nodes, info.prompt_batch),
            max_branches=info.max_branches,
            max_depth=min(self.max_depth or max_nodes - 1, longest),
            computes_lines=not info.tree_capable,
            n_keep=self.keep if self.context_shift else None,
        )


@dataclass(frozen=True, slots=True)
class RoundRules:
    """Rules and limits of rounds over one target."""

    pacer: Pacer
    acceptance: AcceptanceRule
    max_nodes: int
    """Most nodes of one pass, the root included."""
    max_rows: int
    """Most nodes of one pass and tokens of prompts together."""
    max_branches: int
    max_depth: int
    """Most drafted tokens in one verified branch."""
    computes_lines: bool = False
    """True if the target computes each branch as a sequence of its own, padded to the longest."""
    n_keep: int | None = None
    """Number of first tokens that remain of a full context, -1 for the prompt; None ends the text
    there."""

    @property
    def line_limits(self) -> Limits:
        """Limits of a tree that apply in every context."""
        return Limits(self.max_nodes, self.max_branches, self.max_depth)

    @property
    def tree_capacity(self) -> int:
        """Capacity of a tree: the nodes of a pass, and those drafted during it."""
        return PROVISIONAL_FACTOR * self.max_nodes

    def room_beside(self, prompts: Sequence[PassPart], n_trees: int, n_hidden: int) -> int:
        """Most nodes of `n_trees` trees in a pass that also reads `prompts`: those whose compute
        time is hidden, at least 2 per tree, so that prompts are not delayed."""
        n_nodes = self.max_nodes - sum(len(part.nodes) for part in prompts)
        n_prompt_rows = sum(part.n_rows for part in prompts)
        cheap = max(2 * n_trees, n_hidden - n_prompt_rows)
        return min(n_nodes, self.max_rows - n_prompt_rows, cheap)

    def limits(self, n_free: int, room: int, n_others: int = 0) -> Limits:
        """Limits of a tree before its pass, which `n_others` share, with `n_free` tokens left in
        the context and at most `room` tokens left in the text, which also bound the depth."""
        max_branches = self.max_branches
        if self.computes_lines:  # each sequence may follow the accepted tokens of another one
            max_branches = max(1, min(max_branches, n_free // (1 + 2 * self.max_depth)))
        return Limits(
            max_nodes=min(self.max_nodes - n_others, n_free),
            max_branches=max_branches,
            max_depth=min(self.max_depth, room - 1),
        )

    def limits_beside(self, room: int) -> Limits:
        """Limits of growth during a pass: the next round's depth below a path of full depth and the
        target's own token."""
        return Limits(
            max_nodes=self.tree_capacity,
            max_branches=self.max_branches,
            max_depth=min(2 * self.max_depth + 1, room - 1),
        )
