"""Frozen values that are passed between modules, without behaviour beyond arithmetic.

The module is longer than others, because it is their list.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

Origin = Literal["draft", "target"]
FinishReason = Literal["stop", "length", "context", "cancelled"]

NESTED = ("nested", "nested_small", "nested_least")
"""Kinds of drafts of the upper bits of their target's weights, those of most bits first."""


@dataclass(frozen=True, slots=True)
class DraftSizes:
    """Sizes of a draft made from its target: of coarse copies, or of its weights' upper bits."""

    kind: str
    bits: float
    """Bits per weight of layers."""
    weight_bytes: int
    head_tokens: int = 0
    """Most tokens that its head rates."""
    lower_bytes: int = 0
    """Bytes of the file with the lower bits."""
    unread_bytes: int = 0
    """Bytes of the target that passes need not read where the draft is beside it."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Properties of a model that the engine needs; sizes in bytes."""

    name: str
    architecture: str
    n_vocab: int
    n_ctx: int
    n_layers: int
    size_bytes: int
    tree_capable: bool = True
    """False for recurrent or hybrid models, whose state cannot drop single tokens."""
    max_rollback: int = 0
    """Most guesses in a line, for a model that is not tree-capable. It computes each branch of a
    tree as a line from the root, padded to the longest one; with 0 it verifies no guesses."""
    used_share: float = 1.0
    """Share of a mixture's paged experts that a token uses; 1 for other models."""
    prompt_batch: int = 512
    """Most prompt tokens in one pass."""
    prompt_tile: int = 0
    """Prompts with at least this many tokens are computed by kernels for tiles, which round
    differently from those for shorter prompts and for passes; 0 if all tokens round the same. The
    last token counts if `prompts_give_logits`."""
    prompts_share_passes: bool = False
    """True if prompts shorter than `prompt_tile` round the same whatever else is in their pass, or
    if rounding does not matter, as in a draft."""
    prompts_give_logits: bool = False
    """True if the pass over the end of a prompt can also give the logits of its last token, which
    are those of a pass of its own or, in a prompt of tiles, of a tile."""
    max_nodes: int = 64
    """Most nodes of one `evaluate` call."""
    max_branches: int = 32
    """Most leaves of a tree of provisional nodes; in a pass over several slots, the leaves of all
    trees except the first one of each."""
    n_slots: int = 1
    """Number of texts that the model holds at a time."""
    n_cells: int = 0
    """Tokens that all of them may have together; 0: each has its own `n_ctx`."""
    max_ctx: int = 0
    """Longest context that leaves its texts as they are, where memory allows it; 0: `n_ctx`."""
    n_threads: int = 0
    """Threads that compute the model; 0 if unknown."""
    adjusts: bool = False
    """True if the memory of its weights may change while it is used."""
    block_tokens: int = 0
    """Tokens of a block of stored state, about 1 MiB of keys and values, which depend on all tokens
    up to its end and on nothing else; 0 if the state has no such parts."""
    needs_checkpoints: bool = False
    """True if a text can go on only where all recurrent state was kept: blocks have what attention
    layers hold besides, if there are any."""
    gives_features: bool = False
    """True if it can be loaded to give the inputs of its layers to a head."""
    copies_features: bool = False
    """True if each pass takes longer while it gives them."""
    feature_layers: tuple[int, ...] = ()
    """Layers of the target whose inputs a head reads; empty for a model that is no head."""
    feature_values: int = 0
    """Values of each of these inputs."""
    block_guesses: int = 0
    """Consecutive tokens that a pass of a head for blocks guesses; 0 for other models."""
    is_chained: bool = False
    """True if its guesses after a node also depend on the node's token."""

    takes_prefix: bool = False
    """True for a draft that can take its target's keys and values over: `take_prefix`."""
    max_rows: int = field(init=False)
    """Most rows of a pass, prompt tokens and nodes."""

    def __post_init__(self) -> None:
        # a name from a path may stand for bytes that no text can hold
        object.__setattr__(self, "name", self.name.encode("utf-8", "replace").decode())
        object.__setattr__(self, "max_rows", max(self.prompt_batch, self.max_nodes))

    @property
    def slot_branches(self) -> int:
        """Each slot's equal share of the branches."""
        return 1 + (self.max_branches - 1) // self.n_slots

    @property
    def reads_features(self) -> bool:
        """True for a head, a draft that guesses from its target's hidden states."""
        return bool(self.feature_layers)

    @property
    def verifies_guesses(self) -> bool:
        return self.tree_capable or self.max_rollback > 0


@dataclass(frozen=True, slots=True)
class ExpertDetails:
    """Details of a mixture's experts."""

    experts: int
    """Experts per layer."""
    used: int
    """Experts per layer that a token chooses."""
    nbytes: int
    """Bytes of all experts."""
    token_bytes: int
    """Bytes of all weights that one token uses."""


@dataclass(frozen=True, slots=True)
class HeadDetails:
    """Requirements of a head on its target."""

    layers: tuple[int, ...]
    """Layers of the target whose inputs it reads."""
    hidden_size: int
    """Size of each input."""
    borrows: tuple[str, ...]
    """Matrices that it uses from the target's file."""


@dataclass(frozen=True, slots=True)
class OwnLayers:
    """Prediction layers (MTP) in a model's own file."""

    layers: int
    obstacle: str | None
    """Reason why they cannot be used; None if they can."""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """Details from a model's files, for display; None where they are missing or ambiguous."""

    format: str
    quantization: str | None = None
    """Type of most weights."""
    parameters: int | None = None
    layers: int | None = None
    embedding_length: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    context_length: int | None = None
    licence: str | None = None
    equals: str | None = None
    """Name of the original of an enlarged model."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings as in the model's chat format."""
    chats: bool = False
    """True if the file has a chat template."""
    experts: ExpertDetails | None = None
    head: HeadDetails | None = None
    own_layers: OwnLayers | None = None
    files: tuple[Path, ...] = ()
    info: ModelInfo | None = None
    """Info of a model that cannot be prepared alone, such as a head without matrices of its own."""
    fingerprint: str | None = None
    """Fingerprint of such a model's vocabulary."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """Cost of one `evaluate` call."""

    wall_s: float = 0.0
    stall_s: float = 0.0
    """Seconds in which compute waited for weights."""
    choice_stall_s: float = 0.0
    """Part of `stall_s` spent on experts, which grows with the number of tokens."""
    first_row_stall_s: float | None = None
    """Part of `choice_stall_s` spent on experts of the first token; None if unknown."""
    bytes_read: int = 0
    """Bytes read since the previous call, including read-ahead between the calls."""
    read_s: float = 0.0
    """Seconds spent reading streamed segments since the previous call; 0 if unknown."""
    passes: int = 1
    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """Statistics of a mixture's experts; a chosen expert counts once per layer and pass."""

    layers: int = 0
    experts: int = 0
    """Experts per layer."""
    used: int = 0
    """Experts per layer that one token chooses."""
    cache_bytes: int = 0
    """Size of the expert cache, in whole blocks."""
    hits: int = 0
    misses: int = 0
    bytes_read: int = 0
    stall_s: float = 0.0
    """Seconds in which layers waited for experts."""

    def since(self, before: ExpertStats | None) -> ExpertStats:
        """Counts since `before`."""
        return _since(self, before, "hits", "misses", "bytes_read", "stall_s") if before else self


@dataclass(frozen=True, slots=True)
class PagingStats:
    """Paging of a model and its cost, since loading or in one generation."""

    segments: int = 0
    pinned_bytes: int = 0
    streamed_bytes: int = 0
    bytes_read: int = 0
    stall_s: float = 0.0
    merge_s: float = 0.0
    """Seconds in which the lower bits of nested weights were merged with the upper ones, beside
    computing."""
    passes: int = 0
    experts: ExpertStats | None = None
    """Statistics of experts that are read one by one; other weights are in `segments`."""

    def since(self, before: PagingStats) -> PagingStats:
        """Cost since `before`."""
        experts = self.experts.since(before.experts) if self.experts else None
        found = _since(self, before, "bytes_read", "stall_s", "merge_s", "passes")
        return replace(found, experts=experts)


S = TypeVar("S", ExpertStats, PagingStats)


def _since(now: S, before: S, *names: str) -> S:
    return replace(now, **{name: getattr(now, name) - getattr(before, name) for name in names})


@dataclass(frozen=True, slots=True)
class RoundStats:
    """Seconds, passes and tokens of one round."""

    n_tokens: int
    """Tokens added to the text."""
    accepted: int
    """Accepted guesses among them."""
    verified: int
    passes: int
    draft_s: float
    """Seconds of drafting and of what else a round takes beside the pass, where sources guess."""
    pass_s: float
    stall_s: float
    """Seconds of the pass in which compute waited for weights."""
    wall_s: float
    """Seconds of the whole round."""
    bytes_read: int = 0
    """Bytes of the target's weights that were read, including read-ahead."""

    @property
    def compute_s(self) -> float:
        return max(0.0, self.pass_s - self.stall_s)


@dataclass(frozen=True, slots=True)
class SourceStats:
    """Verified and accepted guesses of one source."""

    source: str
    """Name of the source: `draft` for a draft model, `lookup` for the text itself."""
    verified: int
    """Nodes of this source that the target evaluated."""
    accepted: int
    """Nodes of this source that were accepted."""


def total_sources(brought: Iterable[Iterable[SourceStats]]) -> tuple[SourceStats, ...]:
    """Sums over several texts or rounds, the source with most nodes first."""
    verified: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for by in chain.from_iterable(brought):
        verified[by.source] += by.verified
        accepted[by.source] += by.accepted
    return tuple(SourceStats(name, n, accepted[name]) for name, n in verified.most_common())


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Speculation statistics of one generation."""

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
    """Nodes drafted during a pass that survived the next re-rooting."""
    accepted_lengths: tuple[int, ...] = ()
    """Number of accepted guesses in each round."""
    draft_s: float = 0.0
    """Seconds of drafting and of what else rounds take beside their passes, where sources guess."""
    round_costs: tuple[RoundStats, ...] = ()
    sources: tuple[SourceStats, ...] = ()
    """Counts by source of guesses, the one with most nodes first."""

    @property
    def tokens_per_pass(self) -> float:
        return (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock seconds by phase."""

    load_s: float = 0.0
    prompt_s: float = 0.0
    """Reading the prompt by the target and by drafters."""
    first_token_s: float = 0.0
    """Time to the first token, which the pass over the prompt's end mostly gives."""
    decode_s: float = 0.0
    """Rounds, each of which has a pass."""
    tokens_per_s: float = 0.0
    """Tokens of rounds per second of `decode_s`."""


_TOP = struct.Struct("<id")
"""Binary layout of a token and its log probability."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities by the target, before temperature, filters and grammars."""

    logprob: float
    packed: bytes = b""
    """The alternatives in 12 bytes each, to save memory; unpacked by `top`."""

    @classmethod
    def of(cls, logprob: float, top: Iterable[tuple[int, float]]) -> Self:
        """Log probabilities with the alternatives `top`, pairs of token and value, best first."""
        return cls(logprob, b"".join(_TOP.pack(token, value) for token, value in top))

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """The most probable tokens and their log probabilities, best first."""
        return tuple(_TOP.iter_unpack(self.packed))


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token; `text` may be empty while a character or stop string is incomplete."""

    text: str
    token: int
    origin: Origin
    round: int
    logprobs: TokenLogprobs | None = None
    """Log probabilities, if requested."""
    source: str = "target"
    """Name of the drafter that had guessed it: `draft`, `lookup`, `recycled` ..., or `target`."""


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Tokens of a prompt that have been read so far, as llama.cpp's server counts them."""

    total: int
    cache: int
    """Tokens that were in the KV cache."""
    processed: int
    """Tokens that were in the cache or have been read."""
    time_ms: int
    """Milliseconds since reading began."""


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Memory of the process."""

    budget_bytes: int = 0
    planned_bytes: int = 0
    """Bytes of the memory plan, at most the budget."""
    peak_bytes: int = 0
    """Peak resident memory since the process started."""


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """Tokens, text and statistics of one generation."""

    text: str
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings = field(default_factory=Timings)
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    paging: PagingStats = field(default_factory=PagingStats)
    memory: MemoryStats = field(default_factory=MemoryStats)
    notes: tuple[str, ...] = ()
    """Sentences for the user, for example why a draft could not be used."""
    reused_tokens: int = 0
    """Prompt tokens that were already in the KV cache."""
    unread_tokens: int = 0
    """Prompt tokens that were not read, if the text was cancelled before."""
    stopped_by: str | None = None
    """The stop string that ended the text."""


@dataclass(frozen=True, slots=True)
class EnlargeReport:
    """Sizes of an enlarged model."""

    path: Path
    size_bytes: int
    factor: int
    """K, the number of copies of every feature, query head and hidden unit."""
    layers: int
    parameters: int
