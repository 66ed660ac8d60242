"""The frozen values that travel between modules. No behaviour beyond arithmetic on themselves."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

Origin = Literal["draft", "target"]
FinishReason = Literal["stop", "length", "context", "cancelled"]

ENLARGED_FROM = "edgespec.enlarged_from"
"""Metadata key that an enlarged model carries, in every format: the name of the model it equals."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a model that the engine needs; sizes in bytes."""

    name: str
    architecture: str
    n_vocab: int
    n_ctx: int
    n_layers: int
    size_bytes: int
    tree_capable: bool = True
    """False for recurrent or hybrid state, which cannot drop any single token."""
    max_rollback: int = 0
    """Most guesses in a line of a model that is not tree-capable, which computes each branch of a
    tree as a line from the root on, all of them as long as the longest; with 0 it verifies none."""
    used_share: float = 1.0
    """Share of a mixture's experts, read one by one, that a token uses; 1 for other models."""
    prompt_batch: int = 512
    """Most tokens of a prompt that one pass reads."""
    prompt_tile: int = 0
    """Prompts of so many tokens are computed by kernels that need so many rows and round otherwise
    than those of shorter ones and of passes; 0 where all tokens round alike."""
    prompts_share_passes: bool = False
    """True if tokens of a prompt are computed alike whatever else their pass computes, unless they
    are as many as `prompt_tile`."""
    max_nodes: int = 64
    """Most nodes that one `evaluate` call takes."""
    max_branches: int = 32
    """Most leaves that a tree of provisional nodes may have; trees of several texts share all but
    the first of each."""
    n_texts: int = 1
    """Texts that the model holds at once; more than one only behind `ports.texts.HoldsTexts`."""
    n_threads: int = 0
    """Threads that compute it; 0 where a runtime does not say."""
    latency_s: float = 0.0
    """Seconds of a pass spent on the way to other machines, whatever its rows."""

    @property
    def max_rows(self) -> int:
        """Most rows of a pass: tokens of prompts and nodes."""
        return max(self.prompt_batch, self.max_nodes)

    @property
    def verifies_guesses(self) -> bool:
        return self.tree_capable or self.max_rollback > 0


@dataclass(frozen=True, slots=True)
class ExpertDetails:
    """Facts about a mixture's experts, for people."""

    experts: int
    """Experts in a layer."""
    used: int
    """Experts that a token chooses in a layer."""
    nbytes: int
    """Bytes of all experts."""
    token_bytes: int
    """Bytes of all weights that one token needs at least."""


@dataclass(frozen=True, slots=True)
class HeadDetails:
    """The target that a head guesses for, for people."""

    layers: tuple[int, ...]
    """Layers of the target whose inputs it reads."""
    hidden_size: int
    """Values of each of them."""
    borrows: tuple[str, ...]
    """Matrices that it takes from the target's file."""


@dataclass(frozen=True, slots=True)
class OwnLayers:
    """Layers in a model's file that guess for it (MTP), for people."""

    layers: int
    obstacle: str | None
    """The reason why they stay unused; None if they guess."""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """Facts from a model's files, for people; None where they are missing or ambiguous.

    The engine needs none of it.
    """

    format: str
    quantization: str | None = None
    """Type of most of the weights."""
    parameters: int | None = None
    layers: int | None = None
    embedding_length: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    context_length: int | None = None
    """Context that the model was trained on, in tokens."""
    licence: str | None = None
    equals: str | None = None
    """Name of the model that an enlarged one computes the same as."""
    experts: ExpertDetails | None = None
    """Facts about a mixture's experts."""
    head: HeadDetails | None = None
    """The target of a model that guesses from hidden states."""
    own_layers: OwnLayers | None = None
    """Layers that guess for the model itself."""
    files: tuple[Path, ...] = ()
    info: ModelInfo | None = None
    """Shape of a model that cannot be prepared without another, such as a head that borrows."""
    fingerprint: str | None = None
    """Fingerprint of such a model's vocabulary."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """Cost of one `evaluate` or `prefill` call."""

    wall_s: float = 0.0
    stall_s: float = 0.0
    """Time in which compute waited for weights."""
    choice_stall_s: float = 0.0
    """Part of the stall for experts that the tokens had chosen: it grows with the tokens."""
    first_row_stall_s: float | None = None
    """Part of that for experts that the first token chose; None where unknown."""
    bytes_read: int = 0
    """Bytes read since the call before, read-ahead between them included."""
    read_s: float = 0.0
    """Seconds of reading that no choice asked for, since the call before; 0 where unknown."""
    passes: int = 1
    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """Counts of a mixture's experts. One that was chosen counts once a layer and pass."""

    layers: int = 0
    experts: int = 0
    """Experts in each of these layers."""
    used: int = 0
    """Experts that one token chooses."""
    cache_bytes: int = 0
    """Bytes of the cache of experts, in whole blocks."""
    hits: int = 0
    misses: int = 0
    bytes_read: int = 0
    stall_s: float = 0.0
    """Seconds in which a layer waited for its experts."""

    @property
    def hit_rate(self) -> float:
        """Share of the chosen experts that was in memory or on its way."""
        chosen = self.hits + self.misses
        return self.hits / chosen if chosen else 0.0

    def since(self, before: ExpertStats | None) -> ExpertStats:
        """Counts since `before`."""
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
    """Bytes that a model pages, and the cost of that: since it was loaded, or in one generation."""

    segments: int = 0
    pinned_bytes: int = 0
    streamed_bytes: int = 0
    bytes_read: int = 0
    stall_s: float = 0.0
    passes: int = 0
    experts: ExpertStats | None = None
    """Counts of a mixture's experts that are read one by one; the rest of it is in `segments`."""

    def since(self, before: PagingStats) -> PagingStats:
        """Cost since `before`."""
        return replace(
            self,
            bytes_read=self.bytes_read - before.bytes_read,
            stall_s=self.stall_s - before.stall_s,
            passes=self.passes - before.passes,
            experts=self.experts.since(before.experts) if self.experts else None,
        )


@dataclass(frozen=True, slots=True)
class TextCost:
    """Tokens and seconds of one of several texts, from its request to its end."""

    n_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds, passes and tokens of one round."""

    n_tokens: int
    """Tokens that the text gained."""
    accepted: int
    """Drafted tokens among them."""
    verified: int
    passes: int
    draft_s: float
    """Drafting that the pass did not hide."""
    pass_s: float
    stall_s: float
    """Seconds of the pass in which compute waited for weights."""
    wall_s: float
    """The whole round."""
    bytes_read: int = 0
    """Bytes of the target's weights that were read, ahead of the next round too."""

    @property
    def compute_s(self) -> float:
        return max(0.0, self.pass_s - self.stall_s)

    @property
    def other_s(self) -> float:
        """Neither drafting nor the pass: sampling, committing, re-rooting."""
        return max(0.0, self.wall_s - self.draft_s - self.pass_s)


@dataclass(frozen=True, slots=True)
class SourceStats:
    """Counts of one source of guesses."""

    source: str
    """`draft` for a draft model, `lookup` for the text itself."""
    verified: int
    """Nodes of this source that the target evaluated."""
    accepted: int
    """Nodes of this source that were accepted."""


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
    """Drafted tokens that were accepted."""
    provisional_drafted: int = 0
    """Nodes drafted while the target verified."""
    provisional_kept: int = 0
    """Nodes drafted beside a pass that survived the next re-rooting."""
    accepted_lengths: tuple[int, ...] = ()
    """Accepted drafted tokens, one entry a round."""
    draft_s: float = 0.0
    """Drafting that no target pass hid."""
    round_costs: tuple[RoundCost, ...] = ()
    acceptance: str = "exact-replay"
    """Rule that decided which guesses were accepted."""
    keeps: str = "draws"
    """Part of the target's own text that it keeps: its draws, its distribution, or neither."""
    sources: tuple[SourceStats, ...] = ()
    """Counts by source of guesses, the one with most nodes first."""

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


_TOP = struct.Struct("<id")
"""A token and its log probability."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities of the target alone, before temperature, filters and grammars."""

    logprob: float
    packed: bytes = b""
    """The alternatives, 12 bytes each to save memory; unpacked by `top`."""

    @classmethod
    def of(cls, logprob: float, top: Iterable[tuple[int, float]]) -> Self:
        """Log probabilities with the alternatives `top`: token and log probability, best first."""
        return cls(logprob, b"".join(_TOP.pack(token, value) for token, value in top))

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """The most probable tokens and their log probabilities, best first; as many as requested.
        Unpacked at each call."""
        return tuple(_TOP.iter_unpack(self.packed))


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token. `text` may be empty while a character or stop string is undecided."""

    text: str
    token: int
    origin: Origin
    round: int
    logprobs: TokenLogprobs | None = None
    """Log probabilities, if requested."""


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
    """Sentences on why the engine did not work as requested: a draft that could not be used."""
    reused_tokens: int = 0
    """Tokens of the prompt whose KV the models held already, so that they cost no pass."""
    saved_passes: int = 0
    """Passes of the target that reading those tokens would have taken."""
    dropped_tokens: int = 0
    """Tokens that the models forgot because the context was full."""


@dataclass(frozen=True, slots=True)
class EnlargeReport:
    """Sizes of the model that was written."""

    path: Path
    size_bytes: int
    factor: int
    """K: how often every feature, query head and hidden unit is repeated."""
    layers: int
    parameters: int
