"""The tokenizer of an ONNX model, from its `tokenizer.json`.

Supports byte-level BPE and SentencePiece vocabularies, which the tokenizer's decoder tells apart.
Tokens are identified by their text in the file, as in GGUF, so that models of both formats can be
compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from edgespec.errors import ModelError
from edgespec.ports import Vocabulary, unknown_token
from edgespec.ports.language_model import ChatFormat
from edgespec_runtimes.onnx.files.chat_format import chat_format
from edgespec_runtimes.onnx.files.source_model import read_text

MAX_BYTES = 256 << 20


class TokenizerVocabulary(Vocabulary):
    """A vocabulary from a tokenizer.json."""

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        table: Sequence[bytes],
        pieces: Sequence[bytes],
        eog: set[int],
        chat_format: ChatFormat,
    ) -> None:
        self.chat_format = chat_format
        self.n_vocab = len(table)
        self.eog_tokens = frozenset(eog)
        self._path, self._tokenizer = path, tokenizer
        self.table = table
        """Bytes that identify each token, by id."""
        self._pieces = pieces
        self.longest_piece_bytes = max(map(len, pieces), default=0)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        with _damage_told(self._path):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special).ids
            if max(ids, default=0) >= self.n_vocab:
                raise ValueError(f"it gives a token {max(ids)}, the model has {self.n_vocab}")
        return ids

    def piece(self, token: int) -> bytes:
        if not 0 <= token < self.n_vocab:
            raise unknown_token(token, self.n_vocab)
        return self._pieces[token]


def read_vocabulary(
    folder: Path, n_vocab: int, configs: Iterable[Mapping[str, Any]]
) -> TokenizerVocabulary:
    """The vocabulary of a model with `n_vocab` logits; `configs` define end-of-generation tokens.

    Raises ModelError if it is missing, damaged, unsupported, or of another model.
    """
    path = folder / "tokenizer.json"
    content = read_text(path, MAX_BYTES)
    if content is None:
        raise ModelError(f"{path} is missing: an ONNX model needs its tokenizer.json beside it")
    with _damage_told(path):
        tokenizer = Tokenizer.from_str(content)
        decoder = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
    del content
    tokenizer.no_padding()
    tokenizer.no_truncation()
    names: dict[int, str] = {
        token: name for name, token in tokenizer.get_vocab(with_added_tokens=True).items()
    }
    largest = max(names, default=-1)
    if largest >= n_vocab:
        raise ModelError(
            f"{path} does not match the model: it has a token {largest:,}, the model has "
            f"{n_vocab:,}; copy the tokenizer.json that the model was exported with"
        )
    text_of = _decoder(decoder, path)
    added = tokenizer.get_added_tokens_decoder()
    table, pieces = [], []
    for token in range(n_vocab):
        name = names.get(token, f"[PAD{token}]")
        table.append(name.encode())
        if token in added:
            pieces.append(b"" if added[token].special else name.encode())
        else:
            pieces.append(text_of(name) if token in names else b"")
    eog = {token for config in configs for token in _ids(config.get("eos_token_id"))}
    if not eog:
        raise ModelError(
            f"{folder} does not say which token ends a text: put the model's "
            "generation_config.json or config.json beside it"
        )
    if bad := [token for token in eog if token not in range(n_vocab)]:
        raise ModelError(
            f"{folder}: eos_token_id {bad[0]} is none of its {n_vocab:,} tokens: correct it in "
            "generation_config.json or config.json"
        )
    control = frozenset(
        names[token]
        for token, about in added.items()
        if token in names and (about.special or token in eog)
    )
    complete_format = replace(
        chat_format(folder),
        control_tokens=control,
        added_tokens=frozenset(names[token] for token in added if token in names) - control,
    )
    vocabulary = TokenizerVocabulary(path, tokenizer, table, pieces, eog, complete_format)
    vocabulary.encode("a")  # to see whether it works
    return vocabulary


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Context manager in which errors of tokenizers are those of the file. Raises ModelError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # it raises no narrower type, and panics are no Exception
        raise ModelError(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from error


def _decoder(decoder: Mapping[str, Any], path: Path) -> Any:
    """A function from a token's text in the file to its bytes. Raises ModelError."""
    kinds = [decoder.get("type"), *(part.get("type") for part in decoder.get("decoders", ()))]
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece
    found = ", ".join(str(kind) for kind in kinds)
    raise ModelError(
        f"{path} has a vocabulary of a kind that is not supported (decoder {found}): "
        "byte-level BPE and sentencepiece are"
    )


def _byte_level(name: str) -> bytes:
    table = _bytes_of_characters()
    if all(character in table for character in name):
        return bytes(table[character] for character in name)
    return name.encode()


def _sentencepiece(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes([int(name[3:5], 16)])
        except ValueError:
            pass
    return name.replace("\u2581", " ").encode()


@cache
def _bytes_of_characters() -> dict[str, int]:
    """Bytes by the printable characters that encode them in byte-level vocabularies."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


def _ids(value: Any) -> list[int]:
    """The ids in `eos_token_id`, which is a number, a list, or missing."""
    values = value if isinstance(value, list) else [value]
    return [token for token in values if isinstance(token, int) and not isinstance(token, bool)]
