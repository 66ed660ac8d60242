"""The tokenizer: byte-level BPE whose rules llama.cpp implements under the name `qwen2`.
Turns documents into token files; knows nothing of models."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
LLAMA_CPP_PRE = "qwen2"
# llama.cpp's `qwen2` split: a run of indentation is one piece, and so is a run of line ends.
SPLIT = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(documents: list[str], n_vocab: int) -> Tokenizer:
    """Learn `n_vocab` entries; entry 0 is the token that separates documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def write_tokens(tokenizer: Tokenizer, documents: list[str], file: Path, seed: int) -> None:
    """Save the documents in random order as one uint16 stream, each opened by END_OF_TEXT."""
    documents = random.Random(seed).sample(documents, len(documents))
    separator = tokenizer.token_to_id(END_OF_TEXT)
    stream = [separator]
    for encoding in tokenizer.encode_batch(documents):
        stream += [*encoding.ids, separator]
    np.save(file, np.array(stream, dtype=np.uint16))
