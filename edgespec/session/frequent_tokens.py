"""Chooses the tokens that a draft's head rates: those that texts use, then the vocabulary's first.

The interpreter's standard library and the descriptions of installed packages are the texts: code
and English, on every machine.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edgespec.ports import Vocabulary

MAX_TOKENS = 64 << 10
"""Tokens of a head: of code and prose, 0.6 % of the tokens are others."""
CODE_CHARACTERS, PROSE_CHARACTERS = 3_000_000, 1_000_000
MAX_FILE_BYTES = 200_000


def frequent_tokens(
    vocabulary: Vocabulary, n_vocab: int, texts: Sequence[str], n_tokens: int = MAX_TOKENS
) -> list[int]:
    """Up to `n_tokens` of `n_vocab` tokens, ascending: control tokens, the most frequent ones of
    `texts` and of texts here, and the first of the vocabulary."""
    if n_vocab <= n_tokens:
        return [*range(n_vocab)]
    counts = np.zeros(n_vocab, np.int64)
    for text in (*texts, *_code(), *_prose()):
        counts += np.bincount(vocabulary.encode(text), minlength=n_vocab)
    counts[_control_tokens(vocabulary)] = np.iinfo(np.int64).max
    order = np.lexsort((np.arange(n_vocab), -counts))
    return sorted(order[:n_tokens].tolist())


def _control_tokens(vocabulary: Vocabulary) -> list[int]:
    """End-of-generation tokens, and those that a chat template writes."""
    found = set(vocabulary.eog_tokens)
    formats = vocabulary.chat_format
    for text in (*formats.control_tokens, *formats.added_tokens):
        tokens = vocabulary.encode(text, add_special=False)
        found.update(tokens if len(tokens) == 1 else ())
    return sorted(found)


def _code() -> Iterator[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    files = [path for path in folder.rglob("*.py") if "site-packages" not in path.parts]
    return _sampled(files, CODE_CHARACTERS)


def _prose() -> Iterator[str]:
    folder = Path(sysconfig.get_path("purelib"))
    return _sampled([*folder.glob("*.dist-info/METADATA")], PROSE_CHARACTERS)


def _sampled(files: Sequence[Path], most: int) -> Iterator[str]:
    """Texts of every n-th file, so that they have about `most` characters in total."""
    sizes = {path: path.stat().st_size for path in sorted(files)}
    small = [path for path, size in sizes.items() if size <= MAX_FILE_BYTES]
    step = 1 + sum(sizes[path] for path in small) // most
    for path in small[::step]:
        yield path.read_text(encoding="utf-8", errors="ignore")
