"""The one table of llama.cpp's architectures: what their graphs assume, and what they are for.

Knows a few metadata keys and names of tensors, and nothing of sizes or llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from edgespec.errors import ModelError, setting
from edgespec_runtimes.gguf.file.header import GgufFile


class Trait(Flag):
    """Properties of llama.cpp's graphs: assumptions, gaps and outputs."""

    NONE = 0
    PLAIN = auto()
    """Keys, values and rotation have the same size, and all layers use as many experts."""
    LINEAR = auto()
    """Layers of linear attention have queries, but no KV heads (Kimi Delta Attention, arXiv
    2510.26692)."""
    ADDS_TO_TOKENS = auto()
    """Scales the embeddings of tokens, or looks up more by a token, but not where it is given
    embeddings."""
    NEEDS_TOKENS = auto()
    """Computes otherwise, or ends the process, where it is given embeddings in place of tokens."""
    SHOWS_INPUTS = auto()
    """Gives the inputs of all layers but the first; asking another one ends the process."""
    ENLARGEABLE = auto()
    """A LLaMA, dense or a mixture, or one with dense layers first and shared experts."""
    HEADS_ALIKE = auto()
    """Takes its norm of keys to be as wide as that of queries."""
    ONE_SEQUENCE = auto()
    """Ends the process where a pass has several sequences."""
    FIRST_LOGITS = auto()
    """Gives logits of the first rows where those of the last ones are asked for."""
    TRUSTS_EXPERTS = auto()
    """Takes tensors of experts for optional, and ends the process where one is missing."""
    NO_OUTPUT = auto()
    """Multiplies with the embeddings, also where there is an output matrix."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """Purpose of a model that does not generate text, and advice for its user."""

    does: str
    instead: str


EMBEDDING = Purpose(
    "turns texts into vectors and writes none",
    "name a model that generates text, and use this one with `edgespec serve` for /v1/embeddings "
    "or edgespec.load_embedder",
)
RANKING = Purpose(
    "scores pairs of texts, for which edgespec has no request", "name an embedding model"
)
TEXT = Purpose("generates text and says of no vectors", "name an embedding model")
WHOLE_TEXT = Purpose(
    "does not write a token after the other: it has an encoder, makes sound or pictures, or writes "
    "by diffusion",
    "name a decoder-only model, or run this one with llama.cpp",
)
VISION = Purpose(
    "is the image half of another model", "name the text model that it belongs to as the target"
)
HEAD = Purpose(
    "is a drafting head, which computes nothing without its target's inner states",
    f"name the model that it was made for with {setting.model}, and the head with {setting.draft}",
)
OTHER_HEAD = Purpose(
    "is a drafting head that computes with its target's keys and values, which edgespec keeps",
    "name an EAGLE-3, DFlash or DSpark head or a whole model of the target's family, or take "
    f"{setting.draft('self')}",
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """Traits of the graphs of an architecture, and the purpose of its models."""

    traits: Trait = Trait.NONE
    purpose: Purpose | None = None
    """None for models that generate text."""
    own_layer: tuple[str, ...] | None = None
    """Tensors that the graph of a prediction layer (MTP) needs besides those of every such layer;
    None if it is not computed from the target's last hidden state."""
    own_layer_without: str = ""
    """Metadata key of models whose prediction layer is not computed."""


def _alike(names: str, traits: Trait = Trait.NONE, **more: Any) -> dict[str, Architecture]:
    return dict.fromkeys(names.split(), Architecture(traits, **more))


_EXPERTS = ("ffn_gate_inp",)
_LATENT = ("attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b")
_SHARED_EXPERTS = ("ffn_down_exps", "ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp")

ARCHITECTURES: Mapping[str, Architecture] = {
    **_alike(
        "mistral3 qwen2 qwen2moe gemma gemma2 granite granitemoe olmo olmo2 olmoe smollm3 minicpm "
        "exaone starcoder2 command-r deepseek internlm2",
        Trait.PLAIN,
    ),
    "llama": Architecture(Trait.PLAIN | Trait.SHOWS_INPUTS | Trait.ENLARGEABLE),
    **_alike("qwen3 qwen3moe", Trait.PLAIN | Trait.SHOWS_INPUTS),
    "gemma3": Architecture(Trait.PLAIN | Trait.ADDS_TO_TOKENS),
    "gemma3n": Architecture(Trait.ADDS_TO_TOKENS),
    "gemma4": Architecture(Trait.ADDS_TO_TOKENS | Trait.SHOWS_INPUTS),
    **_alike(
        "gpt-oss hunyuan-dense hunyuan_vl mimo2 minimax-01 minimax-m2 muse-glimmer nanbeige",
        Trait.SHOWS_INPUTS,
    ),
    "ernie4_5-moe": Architecture(Trait.ENLARGEABLE),
    "bitnet": Architecture(Trait.NO_OUTPUT),
    "cogvlm": Architecture(Trait.NEEDS_TOKENS | Trait.FIRST_LOGITS),
    **_alike("deepseek4 graniteswitch", Trait.NEEDS_TOKENS),
    **_alike("glm5-next kimi-k3 kimi-linear", Trait.LINEAR),
    **_alike("lfm2 lfm2moe nemotron_h", Trait.SHOWS_INPUTS),
    "plamo2": Architecture(Trait.ONE_SEQUENCE),
    "bailingmoe3": Architecture(Trait.LINEAR | Trait.SHOWS_INPUTS, own_layer=()),
    "nemotron_h_moe": Architecture(
        Trait.SHOWS_INPUTS, own_layer=(*_EXPERTS, "nextn.shared_head_norm")
    ),
    "qwen35": Architecture(Trait.SHOWS_INPUTS, own_layer=()),
    "hy_v3": Architecture(Trait.TRUSTS_EXPERTS, own_layer=()),
    **_alike("qwen35moe qwen3next", Trait.SHOWS_INPUTS, own_layer=_EXPERTS),
    **_alike("deepseek32 glm-dsa cohere2moe", own_layer=_EXPERTS),
    "glm4moe": Architecture(own_layer=_EXPERTS, own_layer_without="rope.dimension_sections"),
    "deepseek2": Architecture(
        own_layer=("ffn_norm", *_EXPERTS, *_LATENT, *_SHARED_EXPERTS),
        own_layer_without="attention.temperature_scale",
    ),
    **_alike(
        "bert modern-bert nomic-bert nomic-bert-moe neo-bert eurobert jina-bert-v3 gemma-embedding "
        "llama-embed",
        purpose=EMBEDDING,
    ),
    "jina-bert-v2": Architecture(Trait.HEADS_ALIKE, EMBEDDING),
    # chameleon writes images between its words, and plm ends the process when its graph is built
    **_alike(
        "t5 t5encoder dream llada llada-moe rnd1 wavtokenizer-dec qwen3tts pockettts chameleon plm",
        purpose=WHOLE_TEXT,
    ),
    "eagle3": Architecture(Trait.PLAIN, HEAD),
    "dflash": Architecture(purpose=HEAD),
    "gemma4-assistant": Architecture(purpose=OTHER_HEAD),
    "clip": Architecture(purpose=VISION),
}
"""Architectures by name; those that are missing generate text and have none of the traits."""


def architecture(name: str) -> Architecture:
    return ARCHITECTURES.get(name, Architecture())


def purpose_of(header: GgufFile) -> Purpose | None:
    """The purpose of a model; a file with prediction layers (MTP) alone is a head."""
    names = header.tensors_by_name
    is_apart = any(".nextn." in one for one in names) and not any("blk.0." in one for one in names)
    return HEAD if is_apart else architecture(header.architecture).purpose


def has(header: GgufFile, trait: Trait) -> bool:
    """True if the model's architecture has a trait."""
    return trait in architecture(header.architecture).traits


def names_with(trait: Trait) -> list[str]:
    return [name for name, found in ARCHITECTURES.items() if trait in found.traits]


NO_POOLING, RANK = 0, 4
POOLINGS = {1: "mean", 2: "CLS", 3: "last token", RANK: "rank"}


def check_purpose(header: GgufFile) -> None:
    """Raise ModelError for a model that does not generate text token by token."""
    if header.metadata.get("general.type") == "adapter":
        raise ModelError(
            f"{header.path} is an adapter, which changes another model's weights: join both with "
            "llama.cpp's llama-export-lora, and name the file that it writes"
        )
    if purpose := purpose_of(header):
        raise unfit(header, purpose)
    if header.metadata.get(header.key("attention.causal")) is False:
        raise unfit(header, EMBEDDING, "its attention is not causal")
    pooling = _pooling(header)
    if pooling in POOLINGS:
        raise unfit(header, EMBEDDING, f"it pools its outputs: {POOLINGS[pooling]}")


def turns_texts_into_vectors(header: GgufFile) -> bool:
    """True for an embedding model: by its architecture, its attention, or its pooling."""
    purpose = architecture(header.architecture).purpose
    return purpose is EMBEDDING or (
        purpose is None
        and (
            header.metadata.get(header.key("attention.causal")) is False
            or _pooling(header) in POOLINGS
        )
    )


def check_embeds(header: GgufFile) -> None:
    """Raise ModelError for a model that does not turn each text into one vector."""
    if not turns_texts_into_vectors(header):
        raise unfit(header, architecture(header.architecture).purpose or TEXT)
    pooling = _pooling(header)
    if pooling == RANK:
        raise unfit(header, RANKING)
    if pooling not in POOLINGS:
        raise ModelError(
            f"{header.path} says no pooling ({header.key('pooling_type')}), which makes one vector "
            "of a text: convert it again with one, or name another embedding model"
        )


def _pooling(header: GgufFile) -> int:
    return header.integer(header.key("pooling_type"), NO_POOLING)


def unfit(header: GgufFile, purpose: Purpose, why: str = "") -> ModelError:
    """The error for a model with another purpose."""
    reason = f" ({why})" if why else ""
    return ModelError(
        f"{header.path}: a model of the architecture {header.architecture} {purpose.does}{reason}: "
        f"{purpose.instead}"
    )
