"""When drafting pays: beside a pass, and at all.

Values that answer every round with their successor. They see seconds that were measured elsewhere
and read no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from edgespec.tally import RoundOutcome
from edgespec.values import PassReport


@dataclass(frozen=True, slots=True)
class OverlapGate:
    """Open while passes wait for reads: only then are there cores that a draft may use.

    Two models that compute on the same cores at once gain nothing. Drafting beside a pass takes
    from its stall, so the share that closes the gate is well below the one that opens it.
    """

    opens_above: float = 0.3
    closes_below: float = 0.1
    is_open: bool = False

    def observe(self, report: PassReport) -> OverlapGate:
        if report.wall_s <= 0:
            return self
        stalled = report.stall_s / report.wall_s
        return replace(
            self, is_open=stalled > (self.closes_below if self.is_open else self.opens_above)
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """What rounds of one kind cost and brought of late: an old round fades with every new one."""

    seconds: float = 0.0
    tokens: float = 0.0
    rounds: float = 0.0

    def with_round(self, seconds: float, tokens: int) -> Pace:
        return Pace(0.9 * self.seconds + seconds, 0.9 * self.tokens + tokens, 0.9 * self.rounds + 1)

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.tokens if self.tokens else math.inf


@dataclass(frozen=True, slots=True)
class StepAside:
    """Drafts while a drafted token costs less than a plain one, and measures both to know.

    The preferred way runs; now and then a short probe runs the other one and the two are compared.
    The more a probe has cost, the longer the next one waits: probing costs `probe_share` of the
    time, whatever the models.
    """

    probe_share: ClassVar[float] = 0.02
    shortest_wait: ClassVar[int] = 16
    longest_wait: ClassVar[int] = 4096
    plain_probe_rounds: ClassVar[int] = 3
    draft_probe_rounds: ClassVar[int] = 5
    margin: ClassVar[float] = 0.05
    """The other way must be this much cheaper: noise is no reason to change."""

    prefers_draft: bool = True
    probing: bool = False
    rounds_left: int = 6
    """Rounds until a probe begins or ends."""
    is_first_round: bool = True
    """The first round of either way pays for the change (the draft reads what it missed) and is
    not counted."""
    drafted: Pace = Pace()
    plain: Pace = Pace()

    @property
    def drafts(self) -> bool:
        """Whether the next round drafts."""
        return self.prefers_draft != self.probing

    def observe(self, seconds: float, tokens: int, is_free: bool = False) -> StepAside:
        """The rule after a round of the kind that it asked for.

        `is_free` says that drafting cost the round nothing: a probe could only lose.
        """
        if is_free and self.prefers_draft and not self.probing:
            return self
        after = replace(self, is_first_round=False, rounds_left=self.rounds_left - 1)
        if not self.is_first_round and self.drafts:
            after = replace(after, drafted=self.drafted.with_round(seconds, tokens))
        elif not self.is_first_round:
            after = replace(after, plain=self.plain.with_round(seconds, tokens))
        if after.rounds_left > 0:
            return after
        return after._judge() if self.probing else after._probe()

    def _probe(self) -> StepAside:
        """Begin to run the other way; what was known of it is out of date."""
        probe = replace(self, probing=True, is_first_round=True)
        if self.prefers_draft:
            return replace(probe, rounds_left=self.plain_probe_rounds, plain=Pace())
        return replace(probe, rounds_left=self.draft_probe_rounds, drafted=Pace())

    def _judge(self) -> StepAside:
        """End a probe: go on with the other way if it was cheaper, else go back."""
        preferred, probed = self.drafted, self.plain
        if not self.prefers_draft:
            preferred, probed = probed, preferred
        after = replace(self, probing=False, is_first_round=True)
        if probed.seconds_per_token < (1 - self.margin) * preferred.seconds_per_token:
            return replace(
                after, prefers_draft=not self.prefers_draft, rounds_left=self.shortest_wait
            )
        excess_s = probed.seconds - probed.tokens * preferred.seconds_per_token
        wait = excess_s / self.probe_share * preferred.rounds / max(preferred.seconds, 1e-9)
        return replace(
            after, rounds_left=int(min(max(wait, self.shortest_wait), self.longest_wait))
        )


FREE_SHARE = 0.05


def drafting_is_free(outcome: RoundOutcome) -> bool:
    """Whether a round shows by itself that it was not slower for its draft.

    Its pass waited for storage, so the nodes were computed while reads went on, and the drafting
    that no pass hid was a small part of it. Every pass yields a token at least, as without a draft.
    """
    return (
        outcome.stall_s > FREE_SHARE * outcome.pass_s
        and outcome.draft_s < FREE_SHARE * outcome.wall_s
    )
