"""The frozen values that travel between modules. No behaviour beyond arithmetic on themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

Origin = Literal["draft", "target"]
FinishReason = Literal["stop", "length", "context", "cancelled"]

ENLARGED_FROM = "edgespec.enlarged_from"
"""Metadata key that an enlarged model carries, in every format: the name of the model it equals."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the engine has to know about a model; sizes in bytes."""

    name: str
    architecture: str
    n_vocab: int
    n_ctx: int
    n_layers: int
    size_bytes: int
    tree_capable: bool = True
    """False for recurrent or hybrid state, which cannot drop any single token."""
    max_rollback: int = 0
    """Of a model that is not tree-capable: the most tokens of a line that it can drop again. Such a
    model verifies lines of guesses, where 0 verifies none."""
    used_share: float = 1.0
    """Of a mixture's experts that are read one by one, what a token uses; 1 for other models."""
    prompt_batch: int = 512
    """Most tokens of a prompt that one pass reads."""
    max_nodes: int = 64
    """Most nodes that one `evaluate` call takes."""
    max_branches: int = 32
    """Most leaves that a tree of provisional nodes may have."""
    n_threads: int = 0
    """That compute it; 0 where a runtime does not say."""

    @property
    def verifies_guesses(self) -> bool:
        return self.tree_capable or self.max_rollback > 0


@dataclass(frozen=True, slots=True)
class ExpertDetails:
    """What a mixture's files say about its experts, for people."""

    experts: int
    """In a layer."""
    used: int
    """That a token chooses in a layer."""
    nbytes: int
    """Of all experts."""
    token_bytes: int
    """Of all weights, what one token needs at least."""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """What a model's files say about it, for people; None where they do not say, or not one thing.

    The engine needs none of it.
    """

    format: str
    quantization: str | None = None
    """Of most of the weights."""
    parameters: int | None = None
    layers: int | None = None
    embedding_length: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    context_length: int | None = None
    """What the model was trained on."""
    licence: str | None = None
    equals: str | None = None
    """Of an enlarged model, the name of the one that it computes the same as."""
    experts: ExpertDetails | None = None
    """Of a mixture."""
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one `evaluate` or `prefill` call cost."""

    wall_s: float = 0.0
    stall_s: float = 0.0
    """Time in which compute waited for weights."""
    choice_stall_s: float = 0.0
    """Of it, for experts that the tokens had chosen: the more tokens, the longer."""
    bytes_read: int = 0
    """Since the call before: what was read ahead between them counts."""
    read_s: float = 0.0
    """That reading took which no choice asked for, since the call before; 0 where none is known."""
    passes: int = 1
    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """How a mixture's experts were served. One that was chosen counts once a layer and pass."""

    layers: int = 0
    experts: int = 0
    """In each of these layers."""
    used: int = 0
    """That one token chooses."""
    cache_bytes: int = 0
    """Room for experts; what they take in whole blocks counts."""
    hits: int = 0
    misses: int = 0
    bytes_read: int = 0
    stall_s: float = 0.0
    """In which a layer waited for its experts."""

    @property
    def hit_rate(self) -> float:
        """Of the experts that were chosen, the share that was in memory or on its way."""
        chosen = self.hits + self.misses
        return self.hits / chosen if chosen else 0.0

    def since(self, before: ExpertStats | None) -> ExpertStats:
        """What happened after `before`."""
        if before is None:
            return self
        return replace(
            self,
            hits=self.hits - before.hits,
            misses=self.misses - before.misses,
            bytes_read=self.bytes_read - before.bytes_read,
            stall_s=self.stall_s - before.stall_s,
        )


@dataclass(frozen=True, slots=True)
class PagingStats:
    """What a model pages, and what that has cost: since it was loaded, or in one generation."""

    segments: int = 0
    pinned_bytes: int = 0
    streamed_bytes: int = 0
    bytes_read: int = 0
    stall_s: float = 0.0
    passes: int = 0
    experts: ExpertStats | None = None
    """Of a mixture whose experts are read one by one; the rest of it is in `segments`."""

    def since(self, before: PagingStats) -> PagingStats:
        """What it cost after `before`."""
        return replace(
            self,
            bytes_read=self.bytes_read - before.bytes_read,
            stall_s=self.stall_s - before.stall_s,
            passes=self.passes - before.passes,
            experts=self.experts.since(before.experts) if self.experts else None,
        )


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Where one round's time went, and what it brought."""

    n_tokens: int
    """Tokens that the text gained."""
    accepted: int
    """Of those, drafted ones."""
    verified: int
    passes: int
    draft_s: float
    """Drafting that the pass did not hide."""
    pass_s: float
    stall_s: float
    """Of the pass: time in which compute waited for weights."""
    wall_s: float
    """The whole round."""
    bytes_read: int = 0
    """Of the target's weights, ahead of the next round too."""

    @property
    def compute_s(self) -> float:
        return max(0.0, self.pass_s - self.stall_s)

    @property
    def other_s(self) -> float:
        """Neither drafting nor the pass: sampling, committing, re-rooting."""
        return max(0.0, self.wall_s - self.draft_s - self.pass_s)


@dataclass(frozen=True, slots=True)
class SourceStats:
    """What one source of guesses brought."""

    source: str
    """`draft` for a draft model, `lookup` for the text itself."""
    verified: int
    """Its nodes that the target evaluated."""
    accepted: int
    """Of those, nodes that stood."""


def total_sources(brought: Iterable[Iterable[SourceStats]]) -> tuple[SourceStats, ...]:
    """The sums over several texts or rounds, the source with most nodes first."""
    verified: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for sources in brought:
        for by in sources:
            verified[by.source] += by.verified
            accepted[by.source] += by.accepted
    return tuple(SourceStats(name, n, accepted[name]) for name, n in verified.most_common())


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Totals of one generation."""

    rounds: int = 0
    target_passes: int = 0
    drafted: int = 0
    """Nodes added to the tree."""
    verified: int = 0
    """Drafted nodes that the target evaluated."""
    accepted: int = 0
    """Drafted tokens that stood."""
    provisional_drafted: int = 0
    """Nodes drafted while the target verified."""
    provisional_kept: int = 0
    """Of those, the nodes that survived the next re-rooting."""
    accepted_lengths: tuple[int, ...] = ()
    """Accepted drafted tokens, one entry a round."""
    draft_s: float = 0.0
    """Drafting that no target pass hid."""
    round_costs: tuple[RoundCost, ...] = ()
    sources: tuple[SourceStats, ...] = ()
    """By whoever guessed, the one with most nodes first."""

    @property
    def tokens_per_pass(self) -> float:
        return (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock seconds."""

    load_s: float = 0.0
    prompt_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the target alone thought of a token, before temperature, filters and grammars."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens and their log probabilities, best first; as many as asked for."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token. `text` may be empty while a character or stop string is undecided."""

    text: str
    token: int
    origin: Origin
    round: int
    logprobs: TokenLogprobs | None = None
    """Where they were asked for."""


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The whole of one generation."""

    text: str
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings = field(default_factory=Timings)
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    paging: PagingStats = field(default_factory=PagingStats)
    notes: tuple[str, ...] = ()
    """Why the engine worked otherwise than asked, in sentences: a draft that could not be used."""
    reused_tokens: int = 0
    """Of the prompt: those that were in the models already and cost no pass."""
    saved_passes: int = 0
    """Of the target, that reading those tokens would have taken."""


@dataclass(frozen=True, slots=True)
class EnlargeReport:
    """What was written."""

    path: Path
    size_bytes: int
    factor: int
    """K: how often every feature, query head and hidden unit is repeated."""
    layers: int
    parameters: int
