"""The header of a GGUF model, possibly in several files: metadata and positions of tensors.

Knows the container format, but no architectures and no llama.cpp objects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from edgespec.errors import ModelError
from edgespec.files.regular import open_regular
from edgespec_runtimes.gguf.file.layout import MADE_FOR, MAGIC, ValueType
from edgespec_runtimes.gguf.file.parts import (
    GgufArray,
    MetadataEntry,
    MetadataValue,
    TensorEntry,
    read_part,
)

T = TypeVar("T", int, str)

__all__ = ["GgufArray", "GgufFile", "TensorEntry", "ValueType", "read_header"]


@dataclass(frozen=True)
class GgufFile:
    """Header of a model with all its files; `entries` has the metadata of the first file."""

    paths: tuple[Path, ...]
    alignment: int
    entries: Mapping[str, MetadataEntry]
    tensors: tuple[TensorEntry, ...]

    @property
    def path(self) -> Path:
        """The file to load: the first part."""
        return self.paths[0]

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @cached_property
    def metadata(self) -> Mapping[str, MetadataValue]:
        return MappingProxyType({key: entry.value for key, entry in self.entries.items()})

    @cached_property
    def tensors_by_name(self) -> Mapping[str, TensorEntry]:
        return MappingProxyType({tensor.name: tensor for tensor in self.tensors})

    @property
    def architecture(self) -> str:
        name = self.text("general.architecture")
        # it is part of messages and of llama.cpp's names
        if not (name.isascii() and name.isprintable() and 0 < len(name) <= MAX_NAME):
            raise ModelError(f"{self.path}: general.architecture is no name but {name!r:.80}")
        return name

    @property
    def name(self) -> str:
        """The name in the metadata, or the file's name."""
        value = self.metadata.get("general.name")
        return value if isinstance(value, str) and value else self.path.stem

    @property
    def n_layers(self) -> int:
        return self.integer(self.key("block_count"))

    @property
    def context_length(self) -> int:
        return self.integer(self.key("context_length"))

    @property
    def embedding_length(self) -> int:
        return self.integer(self.key("embedding_length"))

    @property
    def n_heads(self) -> int:
        return self.integer(self.key("attention.head_count"))

    @property
    def n_kv_heads(self) -> int:
        return self.integer(self.key("attention.head_count_kv"), self.n_heads)

    @property
    def head_size(self) -> int:
        """Elements of a key."""
        share = self.embedding_length // self.n_heads
        return self.integer(self.key("attention.key_length"), share)

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary; 0 if there is none."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, GgufArray):
            return len(tokens)
        return self.integer(self.key("vocab_size"), 0)

    @property
    def made_for(self) -> str | None:
        """Fingerprint of the target's vocabulary, in a draft without a tokenizer."""
        return self.text(MADE_FOR, "") or None

    def token_table(self) -> list[bytes]:
        """All tokens by id, 88 bytes each. Raises ModelError for a model without a vocabulary."""
        return list(self._tokens.strings())

    def texts_of(self, tokens: Collection[int]) -> tuple[dict[int, bytes], int]:
        """Texts of some tokens, and the length of the longest of all. Raises ModelError like
        `token_table`."""
        found, longest = {}, 0
        for token, text in enumerate(self._tokens.strings()):
            longest = max(longest, len(text))
            if token in tokens:
                found[token] = text
        return found, longest

    @property
    def _tokens(self) -> GgufArray:
        array = self.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(array, GgufArray):
            raise ModelError(f"{self.path} has no vocabulary: it is not a language model")
        return array

    def key(self, suffix: str) -> str:
        """The metadata key `suffix` of this model's architecture."""
        return f"{self.architecture}.{suffix}"

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer in the metadata. Raises ModelError if it is missing or of another type."""
        return self._typed(key, default, int, "an integer")

    def text(self, key: str, default: str | None = None) -> str:
        """A string in the metadata. Raises ModelError if it is missing or of another type."""
        return self._typed(key, default, str, "a string")

    def _typed(self, key: str, default: T | None, kind: type[T], what: str) -> T:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.path}: metadata has no {key}; convert it again")
        if isinstance(value, bool) or not isinstance(value, kind):
            told = "an array" if isinstance(value, GgufArray) else repr(value)
            raise ModelError(f"{self.path}: {key} must be {what}, it is {told}")
        return value


def is_gguf(path: Path) -> bool:
    """True if the path has the suffix, or the file the magic number, of GGUF."""
    if path.suffix == ".gguf":
        return True
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> GgufFile:
    """Header of the GGUF file at `path`, and of all other parts if the model is split.

    `path` may be any part; that they belong together is left to llama.cpp. Raises ModelError if a
    file is missing, is not GGUF, is inconsistent, or is shorter than its tensors.
    """
    named = GgufFile((Path(path),), *read_part(Path(path), 0))
    count = named.integer("split.count", 1)
    if count <= 1:
        return named
    paths = _split_paths(named, count)
    parts = [read_part(part, index) for index, part in enumerate(paths)]
    tensors = tuple(tensor for *_, found in parts for tensor in found)
    return GgufFile(tuple(paths), *parts[0][:2], tensors)


MAX_NAME = 64
"""Letters of an architecture's name."""
_SPLIT_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def _split_paths(named: GgufFile, count: int) -> list[Path]:
    path = named.path
    number = named.integer("split.no")
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None or (int(match["number"]), int(match["count"])) != (number + 1, count):
        raise ModelError(
            f"{path} is part {number + 1} of {count} of a split model and must be named "
            f"NAME-{number + 1:05d}-of-{count:05d}.gguf, next to the others"
        )
    parts = [
        path.with_name(f"{match['prefix']}-{index + 1:05d}-of-{count:05d}.gguf")
        for index in range(count)
    ]
    for index, part in enumerate(parts):
        if not part.exists():
            raise ModelError(f"part {index + 1} of {count} is missing: put {part} there")
    return parts
