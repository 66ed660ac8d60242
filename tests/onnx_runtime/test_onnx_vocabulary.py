"""Tokens and text by `tokenizer.json`, and what makes vocabularies comparable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from edgespec_runtimes.onnx.files.vocabulary import TokenizerVocabulary, read_vocabulary
from gguf_files import byte_level_vocabulary
from onnx_files import write_tokenizer

TEXT = "Once there were two wolves\n\tand \u00e9t\u00e9 \U0001f43a."


def byte_level(folder: Path) -> TokenizerVocabulary:
    write_tokenizer(folder / "tokenizer.json", 297)
    return read_vocabulary(folder, 297, [{"eos_token_id": 0}])


def sentencepiece(folder: Path) -> TokenizerVocabulary:
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "\u2581the", "wolf", "<|user|>"]
    bpe = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[],
        byte_fallback=True,
        unk_token="<unk>",
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.add_tokens([AddedToken("<|user|>", special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return read_vocabulary(folder, len(tokens), [{"eos_token_id": [1]}])


@pytest.mark.parametrize("vocabulary_in", [byte_level, sentencepiece])
def test_pieces_join_to_the_text(
    vocabulary_in: Callable[[Path], TokenizerVocabulary], tmp_path: Path
) -> None:
    vocabulary = vocabulary_in(tmp_path)
    assert b"".join(map(vocabulary.piece, vocabulary.encode(TEXT))).decode() == TEXT


def test_control_tokens_add_nothing_and_other_added_tokens_their_text(tmp_path: Path) -> None:
    vocabulary = sentencepiece(tmp_path)
    assert (vocabulary.piece(1), vocabulary.piece(259)) == (b"", b" the")
    assert vocabulary.piece(vocabulary.encode("<|user|>")[0]) == b"<|user|>"


def test_tokens_are_known_by_the_bytes_that_gguf_files_hold(tmp_path: Path) -> None:
    tokens, _ = byte_level_vocabulary()
    assert list(byte_level(tmp_path).table) == [token.encode() for token in tokens]


def test_ends_are_taken_from_every_configuration(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json", 297)
    configs = [{"eos_token_id": [3, 5]}, {"eos_token_id": 0}, {"eos_token_id": None}, {}]
    assert read_vocabulary(tmp_path, 297, configs).eog_tokens == {0, 3, 5}
