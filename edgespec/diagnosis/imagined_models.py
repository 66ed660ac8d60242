"""Predicts what a model of some size would do on some machine, without a file of it.

Pure arithmetic: sizes of well-known models, the plan that a file of that size would get, and the
figures that drafts made from a target are chosen by.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

from edgespec.errors import UsageError
from edgespec.memory.budget import MIB, PROMPT_BUFFERS, MemoryPlan, MemoryRow
from edgespec.memory.division import plan_models
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.needs import BatchNeeds, ModelNeeds
from edgespec.memory.pinning import SegmentSize
from edgespec.session import strategy
from edgespec.session.strategy import COARSENESSES, Speed, Strategy
from edgespec.values import DraftSizes

BITS = {
    "F32": 32.0,
    "F16": 16.0,
    "BF16": 16.0,
    "Q8_0": 8.50,
    "Q6_K": 6.56,
    "Q5_K_M": 5.70,
    "Q5_K_S": 5.57,
    "Q4_K_M": 4.89,
    "Q4_K_S": 4.67,
    "Q4_0": 4.66,
    "IQ4_XS": 4.46,
    "Q3_K_L": 4.30,
    "Q3_K_M": 4.00,
    "Q3_K_S": 3.64,
    "Q2_K": 3.16,
    "MXFP4": 4.63,
    "Q2_0": 2.25,
}
"""Bits per weight of Llama 3.1 8B in each kind of file (llama.cpp, tools/quantize/README.md); MXFP4
as in gpt-oss, whose experts alone have it, and Q2_0 of its block."""
MIN_BILLIONS, MAX_BILLIONS = 1e-3, 1e6
"""Fewest and most parameters of an imagined model."""
_NAME = re.compile(r"(\d+(?:\.\d+)?)B(-A\d+(?:\.\d+)?B)?[-_:](\w+)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class UsualShape:
    """Sizes of a model, from its published configuration."""

    like: str
    billions: float
    n_layers: int
    width: int
    kv_width: float
    """Width of a token's keys in a layer, all heads together, on average over all layers, as in
    plans with 4,096 tokens."""
    n_vocab: int
    tied: bool
    """True if the head's weights are those of the embedding table."""
    n_experts: int = 0
    """Experts in each layer; 0 for a dense model."""
    n_used: int = 0
    expert_width: int = 0
    """On average over all layers, as if each expert had three matrices."""
    state_bytes: float = 0
    """State of a text in layers that keep no keys."""
    growth: float = 1.0
    """Size of K-quants, of which rows of no multiple of 256 values take larger types."""


SHAPES = (
    UsualShape("Qwen2.5 0.5B", 0.49, 24, 896, 128, 151_936, True),
    UsualShape("LFM2.5 1.2B", 1.17, 16, 2_048, 192, 65_536, True),
    UsualShape("Qwen2.5 1.5B", 1.54, 28, 1_536, 256, 151_936, True),
    UsualShape("Qwen2.5 3B", 3.09, 36, 2_048, 256, 151_936, True),
    UsualShape("Llama 3.1 8B", 8.03, 32, 4_096, 1_024, 128_256, False),
    UsualShape("Gemma 4 12B", 11.9, 48, 3_840, 1_365, 262_144, True, growth=1.03),
    UsualShape("Qwen2.5 14B", 14.8, 48, 5_120, 1_024, 152_064, False),
    UsualShape("Qwen3.6 27B", 27.3, 64, 5_120, 256, 248_320, False, state_bytes=151_000_000),
    UsualShape("Qwen2.5 32B", 32.8, 64, 5_120, 1_024, 152_064, False),
    UsualShape("Llama 3.1 70B", 70.6, 80, 8_192, 1_024, 128_256, False),
)
MIXTURES = (
    UsualShape("LFM2.5 8B-A1B", 8.47, 24, 2_048, 128, 128_000, True, 32, 4, 1_643),
    UsualShape("gpt-oss-20b", 20.9, 24, 2_880, 512, 201_088, False, 32, 4, 2_880),
    UsualShape("Gemma 4 26B-A4B", 25.2, 30, 2_816, 1_480, 262_144, True, 128, 8, 704, 0, 1.09),
    UsualShape("GLM 4.7 Flash", 29.9, 47, 2_048, 288, 154_880, False, 64, 4, 1_503),
    UsualShape("Qwen3 Coder 30B-A3B", 30.5, 48, 2_048, 512, 151_936, False, 128, 8, 768),
    UsualShape(
        "Nemotron 3 Nano 30B-A3B", 31.6, 52, 2_688, 30, 131_072, False, 128, 6, 547, 5e7, 1.28
    ),
    UsualShape("Qwen3.6 35B-A3B", 34.7, 40, 2_048, 128, 248_320, False, 256, 8, 512, 63_000_000),
    UsualShape("gpt-oss-120b", 116.8, 36, 2_880, 512, 201_088, False, 128, 4, 2_880),
)
"""Named with the parameters of a token (A4B), or by the kind of file that only gpt-oss has."""
PROCESS_BYTES = 116 * MIB
"""Interpreter, libraries and vocabulary: `plan` of a file like Qwen2.5 1.5B."""
N_STATES = 4
"""States of a text in layers that keep no keys, at the ends of turns."""
GRAPH_BYTES_PER_LAYER = 200_000
BATCH_BYTES_PER_WIDTH = 90
"""Compute buffers per token of a batch and number of its width; the same file has 87."""
BATCH_SIZES = (512, 128, 64, 32)
LOGITS_BYTES = 16
"""Bytes of a logit of a node: its float, and copies while it is sampled."""
SEGMENTS_PER_LAYER = (1, 3, 9)
"""Segments of a layer: whole, by matrices, and by slices of them."""
DRAFT_TOKENS, DRAFT_HEAD_BITS = 64 << 10, 3.5
"""Tokens that the head of a draft made from its target rates, and their bits per weight."""
MAX_HEAD_SLICE_BYTES = 10 * MIB
SYSTEM_SHARE, SYSTEM_BYTES = 0.25, 512 * MIB
"""Share and bytes of a machine's memory that a system with a browser takes; the presets of 8 to 16
GB leave the same."""
PROMPT_FLOPS_PER_THREAD = 60e9
"""Operations of a prompt's batch per second of a thread: Qwen2.5-Coder-1.5B in Q4_K_M read 616
tokens in 30 s of processor time of an AMD EPYC (Zen 3), beside other work."""
PROMPT_TOKENS = 500
RELATIVE, RELATIVE_BYTES, RELATIVE_SHARE = "a relative of 0.5B", 506 * MIB, 0.2
"""A small model of the same family, like Qwen2.5 0.5B in Q8_0: its size, and the largest share of
the target's that it may have."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Expected speed with a draft, where little can be guessed and where much can."""

    draft: str
    draft_bytes: int
    """Memory that it takes from the target's weights."""
    tokens_per_pass: tuple[float, float]
    seconds_per_token: tuple[float, float]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Expected speed of a model on a machine; nothing of it was measured."""

    model: str
    like: str
    """The model whose shape was taken."""
    size_bytes: int
    plan: MemoryPlan
    """The plan without a draft."""
    disk_bytes_per_s: float
    n_threads: int
    seconds_per_token: float
    """Without a draft."""
    first_token_s: float
    """Seconds to the first token of a prompt of PROMPT_TOKENS."""
    drafted: tuple[Drafted, ...]
    """With drafts that fit and are expected to be faster than none."""


def usual_budget(memory_bytes: int) -> int:
    """Bytes that a machine with so much memory has for edgespec beside its system."""
    return max(1, int((1 - SYSTEM_SHARE) * memory_bytes) - SYSTEM_BYTES)


def what_if(
    model: str,
    budget_bytes: int,
    disk_bytes_per_s: float,
    ctx_size: int = 4096,
    n_threads: int = 4,
) -> WhatIf:
    """The expected speed of a model named by parameters and kind of file: `8B-Q4_K_M`, a mixture
    `35B-A3B-Q4_K_M`, or by name: `gpt-oss-20b`.

    Raises UsageError for another name, and BudgetError with the smallest budget.
    """
    weights = _Weights.of(model)
    speed = Speed(disk_bytes_per_s, n_threads)
    plan = plan_models(budget_bytes, PROCESS_BYTES, weights.needs(ctx_size))
    alone_s = 1 / Strategy(plan, weights.used_bytes).rates(speed)[0]
    n_batches = -(-PROMPT_TOKENS // plan.batch_size)
    reading_s = n_batches * plan.expected_bytes(plan.batch_size) / disk_bytes_per_s
    operations = 2 * (8 * weights.used_bytes / weights.bits) * PROMPT_TOKENS
    drafted = (
        Drafted(
            RELATIVE if one.draft == RELATIVE else "-md self",
            one.draft_bytes,
            one.guessing.tokens,
            (1 / low, 1 / high),
        )
        for one in _drafts(weights, plan, speed)
        for low, high in [one.rates(speed)]
    )
    return WhatIf(
        model=model,
        like=weights.shape.like,
        size_bytes=weights.nbytes,
        plan=plan,
        disk_bytes_per_s=disk_bytes_per_s,
        n_threads=n_threads,
        seconds_per_token=alone_s,
        first_token_s=max(reading_s, operations / (PROMPT_FLOPS_PER_THREAD * n_threads)),
        drafted=tuple(one for one in drafted if max(one.seconds_per_token) < alone_s),
    )


def _drafts(weights: _Weights, plan: MemoryPlan, speed: Speed) -> list[Strategy]:
    """Drafts that fit: a relative, and the best one made from the target.

    None for a mixture: each guess chooses experts of its own, which are read for it.
    """
    if weights.shape.n_experts:
        return []
    relative = strategy.beside(plan, weights.used_bytes, RELATIVE, RELATIVE_BYTES)
    is_small = RELATIVE_SHARE * weights.nbytes > RELATIVE_BYTES
    fits = plan.paged and plan.smallest_bytes + relative.draft_bytes <= plan.budget_bytes
    found = [relative] * (is_small and fits)
    if not weights.shape.state_bytes:  # how well a hybrid's guesses is not known
        sizes = [DraftSizes(a.kind, a.bits, weights.trimmed_bytes(a.bits)) for a in COARSENESSES]
        own = strategy.own_drafts(plan, weights.used_bytes, sizes)
        found += filter(None, [strategy.fastest(own, speed)])
    return found


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of a model of a usual shape, all layers alike."""

    shape: UsualShape
    n_weights: float
    bits: float

    @classmethod
    def of(cls, model: str) -> Self:
        """The weights of a model named by parameters and kind of file. Raises UsageError."""
        bits = {_plain(kind): n for kind, n in BITS.items()}
        for shape in (*SHAPES, *MIXTURES):
            rest = _plain(model).removeprefix(_plain(shape.like))
            kind = rest or ("mxfp4" if "gpt" in shape.like else "q4km")
            if rest != _plain(model) and kind in bits:
                grown = bits[kind] * (shape.growth if "k" in kind else 1)
                return cls(shape, shape.billions * 1e9, grown)
        match = _NAME.fullmatch(model.strip())
        size, active, kind = match.groups() if match else ("0", "", "")
        billions, kind = float(size), kind.upper()
        if not MIN_BILLIONS <= billions <= MAX_BILLIONS or kind not in BITS:
            raise UsageError(
                f"--what-if {model}: write parameters and kind of file like 8B-Q4_K_M, for a "
                f"mixture with those of a token like 35B-A3B-Q4_K_M, or a name like gpt-oss-20b or "
                f"Gemma-4-12B-Q8_0; the kinds are {', '.join(BITS)}"
            )
        shapes = MIXTURES if active or kind == "MXFP4" else SHAPES
        shape = min(shapes, key=lambda shape: abs(math.log(shape.billions / billions)))
        return cls(shape, billions * 1e9, BITS[kind])

    @property
    def scale(self) -> float:
        """Parameters relative to the model whose shape this is."""
        return self.n_weights / (self.shape.billions * 1e9)

    @property
    def nbytes(self) -> int:
        return int(self.n_weights * self.bits / 8)

    @property
    def head_bytes(self) -> int:
        return int(self.scale * self.shape.n_vocab * self.shape.width * self.bits / 8)

    @property
    def dense_bytes(self) -> int:
        """Bytes that every pass computes with: an embedding table of its own is read by rows."""
        nbytes = self.nbytes - (self.experts.nbytes if self.experts else 0)
        return nbytes if self.shape.tied else nbytes - self.head_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that a pass over one token computes with."""
        return self.dense_bytes + (int(self.experts.token_bytes) if self.experts else 0)

    @property
    def experts(self) -> ExpertSizes | None:
        shape = self.shape
        if not shape.n_experts:
            return None
        expert_bytes = int(self.scale * 3 * shape.width * shape.expert_width * self.bits / 8)
        layer_bytes = shape.n_experts * expert_bytes
        n_bytes, least_bytes = shape.n_layers * layer_bytes, shape.n_used * expert_bytes
        return ExpertSizes(
            shape.n_layers,
            shape.n_experts,
            shape.n_used,
            n_bytes,
            n_bytes,
            layer_bytes,
            least_bytes,
        )

    def trimmed_bytes(self, bits: float) -> int:
        """Memory of a draft with so many bits per weight of layers, and of a head for the most
        frequent tokens."""
        n_head = self.scale * min(self.shape.n_vocab, DRAFT_TOKENS) * self.shape.width
        layers = self.used_bytes - self.head_bytes
        return int(layers * bits / self.bits + n_head * DRAFT_HEAD_BITS / 8)

    def needs(self, ctx_size: int) -> ModelNeeds:
        shape = self.shape
        cuts = tuple(self._segments(n) for n in SEGMENTS_PER_LAYER)
        n_keys, state_bytes = shape.n_layers * shape.kv_width * ctx_size, int(shape.state_bytes)
        experts = self.experts
        return ModelNeeds(
            fixed=(
                _row(f"KV cache ({ctx_size} tokens)", int(4 * n_keys) + state_bytes),
                _row("states at the ends of turns", N_STATES * state_bytes),
                _row("compute graphs", GRAPH_BYTES_PER_LAYER * shape.n_layers),
            ),
            batches=tuple(BatchNeeds(size, self._batch_rows(size)) for size in BATCH_SIZES),
            resident=(_row("weights", self.dense_bytes + (experts.nbytes if experts else 0)),),
            cuts=cuts,
            experts=experts,
        )

    def _batch_rows(self, size: int) -> tuple[MemoryRow, ...]:
        row_bytes, kept = BATCH_BYTES_PER_WIDTH * self.shape.width, min(size, BATCH_SIZES[1])
        kept_bytes = row_bytes * kept + LOGITS_BYTES * self.shape.n_vocab
        lent = MemoryRow("target", PROMPT_BUFFERS, row_bytes * (size - kept), is_lent=True)
        return _row("compute buffers", kept_bytes), lent

    def _segments(self, per_layer: int) -> tuple[SegmentSize, ...]:
        layer_bytes = (self.dense_bytes - self.head_bytes) // self.shape.n_layers
        size = layer_bytes // per_layer
        layers = [
            _segment(f"layer {i // per_layer}", size)
            for i in range(per_layer * self.shape.n_layers)
        ]
        n_slices = -(-self.head_bytes // MAX_HEAD_SLICE_BYTES)
        head = [_segment("head", self.head_bytes // n_slices)] * n_slices
        return (*layers, *head)


def _row(what: str, nbytes: int) -> MemoryRow:
    return MemoryRow("target", what, nbytes)


def _plain(name: str) -> str:
    return re.sub("[-_: ]", "", name.lower())


def _segment(name: str, nbytes: int) -> SegmentSize:
    return SegmentSize(name, nbytes, nbytes)
