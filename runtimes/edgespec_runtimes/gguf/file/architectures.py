"""Traits of llama.cpp's architectures, and the purposes of those that do not generate text.

The table of all names; knows a few metadata keys and nothing of sizes, tensors or llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

from edgespec.errors import ModelError, setting
from edgespec_runtimes.gguf.file.header import GgufFile


class Trait(Flag):
    """Properties of llama.cpp's graphs: assumptions, gaps and outputs."""

    PLAIN = auto()
    """Keys, values and rotation have the same size, and all layers use as many experts."""
    RECURRENT = auto()
    """Layers without KV heads have no attention; some have queries nevertheless (Kimi Delta
    Attention, arXiv 2510.26692)."""
    TRIMMABLE = auto()
    """Takes embeddings in place of tokens, and the head from the embeddings' name."""
    SCALED = auto()
    """The embeddings of tokens are scaled, but not embeddings that it is given."""
    SHOWS_INPUTS = auto()
    """Gives the inputs of all layers but the first; asking another one ends the process."""
    ENLARGEABLE = auto()
    """A LLaMA, dense or a mixture, or one with dense layers first and shared experts."""
    HEADS_ALIKE = auto()
    """Takes its norm of keys to be as wide as that of queries."""


_USUAL = Trait.PLAIN | Trait.TRIMMABLE
TRAITS: dict[str, Trait] = {
    **dict.fromkeys(
        (
            *("mistral3", "qwen2", "gemma", "gemma2", "granite", "granitemoe", "olmo", "smollm3"),
            *("minicpm", "exaone", "starcoder2", "command-r", "deepseek"),
        ),
        _USUAL,
    ),
    "llama": _USUAL | Trait.SHOWS_INPUTS | Trait.ENLARGEABLE,
    **dict.fromkeys(("qwen3", "qwen3moe"), _USUAL | Trait.SHOWS_INPUTS),
    "gemma3": _USUAL | Trait.SCALED,
    **dict.fromkeys(("qwen2moe", "olmo2", "olmoe", "internlm2", "eagle3"), Trait.PLAIN),
    "phi3": Trait.TRIMMABLE,
    **dict.fromkeys(("gpt-oss", "minimax-m2"), Trait.SHOWS_INPUTS),
    "ernie4_5-moe": Trait.ENLARGEABLE,
    "jina-bert-v2": Trait.HEADS_ALIKE,
    **dict.fromkeys(
        (
            *("bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear"),
            *("lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "plamo2"),
        ),
        Trait.RECURRENT,
    ),
}
"""Architectures by name; those that are missing have none of the traits."""


def has(header: GgufFile, trait: Trait) -> bool:
    """True if the model's architecture has a trait."""
    return trait in TRAITS.get(header.architecture, Trait(0))


def names_with(trait: Trait) -> list[str]:
    return [name for name, traits in TRAITS.items() if trait in traits]


@dataclass(frozen=True, slots=True)
class _Purpose:
    """Purpose of a model that does not generate text, and advice for its user."""

    does: str
    instead: str


EMBEDDING = _Purpose(
    "turns texts into vectors and writes none",
    "name a model that generates text, and use this one with `edgespec serve` for /v1/embeddings "
    "or edgespec.load_embedder",
)
RANKING = _Purpose(
    "scores pairs of texts, for which edgespec has no request", "name an embedding model"
)
TEXT = _Purpose("generates text and says of no vectors", "name an embedding model")
WHOLE_TEXT = _Purpose(
    "has an encoder or writes by diffusion, and not a token after the other",
    "name a decoder-only model, or run this one with llama.cpp",
)
SPEECH = _Purpose(
    "makes sound, not text", "name a model that generates text, or run this one with llama.cpp"
)
VISION = _Purpose(
    "is the image half of another model", "name the text model that it belongs to as the target"
)
HEAD = _Purpose(
    "is a drafting head, which computes nothing without its target's inner states",
    f"name the model that it was made for with {setting.model}, and the head with {setting.draft}",
)
OTHER_HEAD = _Purpose(
    "is a drafting head of a kind that edgespec does not run",
    "name an EAGLE-3 or DFlash head, or a whole model of the target's family as the draft",
)
UNFIT = _Purpose(
    "is computed otherwise by llama.cpp than edgespec needs it",
    "name another model, or run this one with llama.cpp",
)

PURPOSES: dict[str, _Purpose] = {
    **dict.fromkeys(
        (
            *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert"),
            *("jina-bert-v2", "jina-bert-v3", "gemma-embedding", "llama-embed"),
        ),
        EMBEDDING,
    ),
    **dict.fromkeys(("t5", "t5encoder", "dream", "llada", "llada-moe", "rnd1"), WHOLE_TEXT),
    **dict.fromkeys(("wavtokenizer-dec", "qwen3tts", "pockettts"), SPEECH),
    **dict.fromkeys(("eagle3", "dflash"), HEAD),
    "gemma4-assistant": OTHER_HEAD,
    "clip": VISION,
    "chameleon": UNFIT,
    "plm": UNFIT,
}
"""Purposes of unsupported architectures; chameleon writes images between its words, and plm ends
the process when its graph is built."""

NO_POOLING, RANK = 0, 4
POOLINGS = {1: "mean", 2: "CLS", 3: "last token", RANK: "rank"}


def check_purpose(header: GgufFile) -> None:
    """Raise ModelError for a model that does not generate text token by token."""
    name = header.architecture
    if header.metadata.get("general.type") == "adapter":
        raise ModelError(
            f"{header.path} is an adapter, which changes another model's weights: join both with "
            "llama.cpp's llama-export-lora, and name the file that it writes"
        )
    if name in PURPOSES:
        raise unfit(header, PURPOSES[name])
    if header.metadata.get(header.key("attention.causal")) is False:
        raise unfit(header, EMBEDDING, "its attention is not causal")
    pooling = _pooling(header)
    if pooling in POOLINGS:
        raise unfit(header, EMBEDDING, f"it pools its outputs: {POOLINGS[pooling]}")


def turns_texts_into_vectors(header: GgufFile) -> bool:
    """True for an embedding model: by its architecture, its attention, or its pooling."""
    purpose = PURPOSES.get(header.architecture)
    return purpose is EMBEDDING or (
        purpose is None
        and (
            header.metadata.get(header.key("attention.causal")) is False
            or _pooling(header) in POOLINGS
        )
    )


def check_embeds(header: GgufFile) -> None:
    """Raise ModelError for a model that does not turn each text into one vector."""
    purpose = PURPOSES.get(header.architecture, TEXT)
    if not turns_texts_into_vectors(header):
        raise unfit(header, purpose)
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


def unfit(header: GgufFile, purpose: _Purpose, why: str = "") -> ModelError:
    """The error for a model with another purpose."""
    reason = f" ({why})" if why else ""
    return ModelError(
        f"{header.path}: a model of the architecture {header.architecture} {purpose.does}{reason}: "
        f"{purpose.instead}"
    )
