"""Cost and yield of a round, and the sums of a generation's rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edgespec.settings.config import AcceptanceName, Keeps
from edgespec.values import RoundCost, SourceStats, SpeculationStats, Timings


class Reached(NamedTuple):
    """A node that the text went through, after which something was guessed."""

    is_sure: bool
    """True if the node's own confidence was high."""
    claimed: float
    """Sum of the confidences of the guesses after it."""
    was_right: bool
    """True if one of the guesses was right."""
    was_first: bool
    """True if the most probable guess was right."""
    entropy: float = 0.0
    """Entropy of the drafter's own distribution there, in nats; 0 where no stop rule asks."""


class Rehearsed(NamedTuple):
    """A token of the text, and how a draft would have guessed what follows it."""

    confidence: float
    """Confidence of its first guess."""
    was_first: bool
    """True if that guess was right."""
    claimed: float
    """Sum of the confidences of all its guesses."""
    was_right: bool
    """True if one of them was right."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """One round, measured. Lengths count drafted tokens: the root is none."""

    n_tokens: int
    """Tokens that the text gained."""
    accepted: int
    """Drafted tokens among those."""
    drafted: int
    """Nodes added to the tree, beside the pass too."""
    verified: int
    best_confidence: float
    """Cumulative confidence of the most probable verified branch."""
    best_length: int
    best_correct: int
    """Leading tokens of that branch that the target agreed with."""
    provisional_drafted: int
    provisional_kept: int
    draft_steps: int
    draft_s: float
    """Drafting that the pass did not hide."""
    passes: int
    pass_s: float
    stall_s: float
    wall_s: float
    """The whole round."""
    n_texts: int = 1
    """Texts that the pass served; all but seconds and passes are sums over them."""
    n_prompt_rows: int = 0
    """Rows of the pass that read prompts of other texts."""
    n_line_rows: int = 0
    """Rows of the pass besides its nodes, of a target that computes lines."""
    guessed: bool = False
    """True if drafters were asked for guesses."""
    growing_s: float = 0.0
    """Seconds of the draft steps before the pass."""
    reading_s: float = 0.0
    """Seconds in which the draft read what was committed without it."""
    steps_beside: int = 0
    """Draft steps beside the pass."""
    expected: float = 0.0
    """Guesses expected to be accepted in the best round that the tree would have allowed."""
    expected_s: float = 0.0
    """Seconds that this round would have taken."""
    rehearsed: Sequence[Rehearsed] = ()
    """Success of the draft on the end of the text, on which it was tried within `reading_s`."""
    found: Sequence[Rehearsed] = ()
    """Success of a free drafter on the last token, in a round without guesses."""
    reached: Sequence[Reached] = ()
    """Nodes that the text went through and that had guesses below them."""
    verified_by: Mapping[str, int] = field(default_factory=dict)
    accepted_by: Mapping[str, int] = field(default_factory=dict)
    """Nodes by source."""
    choice_stall_s: float = 0.0
    """Part of the stall for experts that the pass's nodes chose."""
    first_row_stall_s: float | None = None
    """Part of that for the experts of the first node; None where unknown."""
    bytes_read: int = 0
    read_s: float = 0.0
    """Seconds spent reading streamed segments, overlapped with computing or not; 0 if unknown."""

    @property
    def n_rows(self) -> int:
        """Rows of the pass."""
        return self.n_texts + self.verified + self.n_prompt_rows + self.n_line_rows

    @property
    def idle_s(self) -> float:
        """Time of the pass in which more nodes could have been computed for nothing."""
        return self.stall_s - self.choice_stall_s

    @property
    def missed(self) -> bool:
        """True if all guesses after the last accepted node were wrong."""
        return bool(self.reached) and not self.reached[-1].was_right

    @property
    def cost(self) -> RoundCost:
        """The part of it that results carry."""
        return RoundCost(
            n_tokens=self.n_tokens,
            accepted=self.accepted,
            verified=self.verified,
            passes=self.passes,
            draft_s=self.draft_s,
            pass_s=self.pass_s,
            stall_s=self.stall_s,
            wall_s=self.wall_s,
            bytes_read=self.bytes_read,
        )


@dataclass(slots=True)
class Tally:
    """Sums of one generation, filled in as it runs."""

    prompt_s: float = 0.0
    reused_tokens: int = 0
    saved_passes: int = 0
    dropped_tokens: int = 0
    shift_s: float = 0.0
    """Seconds in which the models read again what shifts of the context left."""
    outcomes: list[RoundOutcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    noted: set[str] = field(default_factory=set)
    """Subjects of the notes."""
    acceptance: str = AcceptanceName.EXACT_REPLAY
    keeps: str = Keeps.DRAWS
    """Acceptance rule, and the part of the target's own text that it keeps."""
    first_came_with_prompt: bool = False
    """True if the pass that read the prompt's end gave the first token."""

    def read_first_token(self, seconds: float) -> None:
        """The prompt's end was read, and the first token came with it."""
        self.prompt_s += seconds
        self.first_came_with_prompt = True

    def note(self, text: str, subject: str = "") -> None:
        """Add a note for the user, unless its subject was noted before."""
        if (subject or text) not in self.noted:
            self.noted.add(subject or text)
            self.notes.append(text)

    def speculation(self) -> SpeculationStats:
        rounds = self.outcomes
        return SpeculationStats(
            rounds=len(rounds),
            target_passes=sum(outcome.passes for outcome in rounds),
            drafted=sum(outcome.drafted for outcome in rounds),
            verified=sum(outcome.verified for outcome in rounds),
            accepted=sum(outcome.accepted for outcome in rounds),
            provisional_drafted=sum(outcome.provisional_drafted for outcome in rounds),
            provisional_kept=sum(outcome.provisional_kept for outcome in rounds),
            accepted_lengths=tuple(outcome.accepted for outcome in rounds),
            draft_s=sum(outcome.draft_s for outcome in rounds),
            round_costs=tuple(outcome.cost for outcome in rounds),
            acceptance=str(self.acceptance),
            keeps=str(self.keeps),
            sources=self._sources(),
        )

    def _sources(self) -> tuple[SourceStats, ...]:
        verified: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        for outcome in self.outcomes:
            verified.update(outcome.verified_by)
            accepted.update(outcome.accepted_by)
        return tuple(
            SourceStats(source, n_nodes, accepted[source])
            for source, n_nodes in verified.most_common()
        )

    def timings(self) -> Timings:
        """Decoding is the rounds, and shifts of the context: what the caller does between tokens
        does not count."""
        decode_s = self.shift_s + sum(outcome.wall_s for outcome in self.outcomes)
        n_tokens = sum(outcome.n_tokens for outcome in self.outcomes)
        return Timings(
            prompt_s=self.prompt_s,
            first_token_s=self.prompt_s
            + sum(outcome.wall_s for outcome in self.outcomes[: not self.first_came_with_prompt]),
            decode_s=decode_s,
            tokens_per_s=n_tokens / decode_s if decode_s > 0 else 0.0,
        )
