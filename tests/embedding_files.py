"""Tiny embedding models with random weights: an encoder like BERT, and a decoder that pools."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from gguf_files import ARRAY, BOOL, I32, STRING, U32, Gguf
from zoo_files import random_model
from zoo_species import EXPERTS_ONLY, Species

MEAN, CLS, LAST, RANK = 1, 2, 3, 4
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_encoder(path: Path, pooling: int = MEAN, **changes: Any) -> Path:
    """An encoder with BERT's tokenizer: [CLS] before a text and [SEP] behind it."""
    model = embedding_model(path, "bert", pooling, **changes)
    tokens = model.metadata["tokenizer.ggml.tokens"][2]
    letters = string.ascii_lowercase + string.digits + string.punctuation
    known = [*WORDS, *(f"\u2581{letter}" for letter in letters), *letters]
    known += [f"[unused{number}]" for number in range(len(tokens) - len(known))]
    kinds = [3] * len(WORDS) + [1] * (len(known) - len(WORDS))
    del model.metadata["tokenizer.ggml.merges"]
    model.metadata |= {
        "tokenizer.ggml.model": (STRING, "bert"),
        "tokenizer.ggml.tokens": (ARRAY, STRING, known),
        "tokenizer.ggml.token_type": (ARRAY, I32, kinds),
        "tokenizer.ggml.token_type_count": (U32, 2),
        "tokenizer.ggml.unknown_token_id": (U32, 1),
        "tokenizer.ggml.bos_token_id": (U32, 2),
        "tokenizer.ggml.eos_token_id": (U32, 3),
        "tokenizer.ggml.seperator_token_id": (U32, 3),
        "tokenizer.ggml.padding_token_id": (U32, 0),
        "tokenizer.ggml.add_bos_token": (BOOL, True),
    }
    return model.write(path)


def write_decoder(path: Path, **changes: Any) -> Path:
    """A decoder of Qwen3-Embedding's kind, which pools its last token."""
    return embedding_model(path, "qwen3", LAST, **changes).write(path)


def embedding_model(path: Path, architecture: str, pooling: int, **changes: Any) -> Gguf:
    species = Species(architecture, architecture in EXPERTS_ONLY)
    return random_model(path, species, {"pooling_type": pooling, **changes})
