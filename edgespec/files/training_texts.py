"""Texts that `--learn` keeps for training drafts, in a bounded set of JSON Lines files.

Lines are appended whole; a torn line of a killed process is skipped. Knows files and their format,
not the training.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgespec.files.regular import read_regular
from edgespec.files.unfinished import PRIVATE_MODE
from edgespec.values import ModelInfo

FILE_BYTES = 4 << 20
"""Size at which a file is full and a new one begins."""
MAX_BYTES = 64 << 20
"""Limit of all files together; the oldest are deleted first."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A position where no guess was accepted, and the target's distribution there."""

    place: int
    """Index of the target's token among the text's tokens."""
    tokens: Sequence[int]
    """The target's most probable tokens at this position."""
    probabilities: Sequence[float]
    """Probabilities of `tokens` at temperature 1."""


@dataclass(frozen=True, slots=True)
class TrainingText:
    """A prompt, the target's answer, and the positions where no guess was accepted."""

    tokens: Sequence[int]
    """Prompt and answer."""
    n_prompt: int
    corrections: Sequence[Correction] = ()


@dataclass(frozen=True, slots=True)
class TextsHeader:
    """First line of a file: the target that wrote its texts, and the draft that guessed."""

    target: str
    target_digest: str
    target_path: str
    """Empty if unknown."""
    draft: str


class TrainingTexts:
    """Files of training texts in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self._files())

    def keep(
        self, target: ModelInfo, draft: ModelInfo, target_path: Path | None, text: TrainingText
    ) -> None:
        """Append a text to the pair's newest file; only its owner can read it. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        prefix = f"{digest(target)}-{digest(draft)}"
        mine = sorted(self._folder.glob(f"{prefix}.*.jsonl"))
        line = b"\n" + _packed(text)  # a line of its own even after a torn one
        if not mine or mine[-1].stat().st_size + len(line) > FILE_BYTES:
            pair = TextsHeader(target.name, digest(target), str(target_path or ""), draft.name)
            line = json.dumps(asdict(pair)).encode() + line
            mine.append(self._folder / f"{prefix}.{time.time_ns():020d}.jsonl")
            self._make_room()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(mine[-1], flags, PRIVATE_MODE)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def pairs(self, draft: ModelInfo) -> list[TextsHeader]:
        """The pairs with this draft that have texts, each once."""
        found = {}
        for path in self._of(draft):
            lines = self._lines(path)
            with suppress(StopIteration, TypeError):
                pair = TextsHeader(**next(lines))
                found[pair.target_digest] = pair
        return list(found.values())

    def texts(self, draft: ModelInfo, target_digest: str) -> list[TrainingText]:
        """The undamaged texts of a pair, oldest first."""
        return [
            text
            for path in self._of(draft)
            if path.name.startswith(f"{target_digest}-")
            for line in self._lines(path)
            if (text := _unpacked(line)) is not None
        ]

    def forget(self) -> int:
        """Delete all texts and return their size in bytes. Raises OSError."""
        nbytes = self.nbytes
        for _, path in self._files():
            path.unlink(missing_ok=True)
        return nbytes

    def _make_room(self) -> None:
        files = self._files()
        n_bytes = sum(size for size, _ in files)
        for size, path in sorted(files, key=lambda file: file[1].name.split(".")[1]):
            if n_bytes <= MAX_BYTES - FILE_BYTES:
                return
            path.unlink(missing_ok=True)
            n_bytes -= size

    def _files(self) -> list[tuple[int, Path]]:
        found = []
        for path in self._folder.glob("*.jsonl"):
            with suppress(OSError):  # another process may delete it
                found.append((path.stat().st_size, path))
        return found

    def _of(self, draft: ModelInfo) -> list[Path]:
        return sorted(self._folder.glob(f"*-{digest(draft)}.*.jsonl"))

    def _lines(self, path: Path) -> Iterator[dict[str, Any]]:
        """The JSON objects in a file; other lines are skipped."""
        content = b""
        with suppress(OSError):
            content = read_regular(path, 2 * FILE_BYTES)
        for line in content.splitlines():
            with suppress(ValueError, RecursionError):
                parsed = json.loads(line)
                if isinstance(parsed, dict):
                    yield parsed


def digest(info: ModelInfo) -> str:
    """Digest of a model's metadata; reads no weights."""
    metadata = (info.name, info.architecture, info.n_vocab, info.n_layers, info.size_bytes)
    return hashlib.sha256(repr(metadata).encode()).hexdigest()[:16]


def _packed(text: TrainingText) -> bytes:
    """The text as one line of JSON; probabilities are integers in thousandths."""
    corrections = [
        [one.place, list(one.tokens), [round(1000 * share) for share in one.probabilities]]
        for one in text.corrections
    ]
    content = {"prompt": text.n_prompt, "tokens": list(text.tokens), "said": corrections}
    return json.dumps(content, separators=(",", ":")).encode()


def _unpacked(content: dict[str, Any]) -> TrainingText | None:
    """The text of a line; None for a header or a damaged line."""
    try:
        tokens, n_prompt = content["tokens"], content["prompt"]
        corrections = [
            Correction(place, said, [share / 1000 for share in shares])
            for place, said, shares in content["said"]
        ]
        wellformed = (
            all(type(token) is int and token >= 0 for token in tokens)
            and 0 < n_prompt < len(tokens)
            and all(
                n_prompt <= one.place < len(tokens)
                and len(one.tokens) == len(one.probabilities) > 0
                and all(type(token) is int and token >= 0 for token in one.tokens)
                for one in corrections
            )
        )
    except (KeyError, TypeError, ValueError):
        return None
    return TrainingText(tokens, n_prompt, corrections) if wellformed else None
