"""Saves the keys and values of a target and its draft in a file, and loads them again.

A file is validated completely before a model's cache is replaced. The engine supplies the tokens,
the models supply keys and values.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import StateError, UsageError
from edgespec.extras import installed_version
from edgespec.files.sampled import sampled_digest
from edgespec.ports import LanguageModel
from edgespec.ports.state import KeepsState, StateOrigin
from edgespec.state.file import Header, ModelState, StateReader, differences, opened, written

if TYPE_CHECKING:
    from edgespec.engine.engine import Engine

USUAL_BYTES = 2 << 20
"""Bytes of buffers that the plan's headroom covers."""
_DECIDING = re.compile("amx|asimd|avx|bf16|f16c|fma|i8mm|sme(?!p)|ssse3|sve")
"""Prefixes of Linux's names of instruction sets by which libraries choose kernels; kernels differ
in rounding."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """State saved in a file, or loaded from it."""

    tokens: tuple[int, ...]
    n_draft_tokens: int
    """Number of these tokens that the draft's saved cache covers."""


class StateKeeper:
    """Saves and loads the state of one pair's first slot, between passes."""

    def __init__(
        self,
        engine: Engine,
        target: LanguageModel,
        draft: LanguageModel | None,
        room_bytes: int = 0,
    ) -> None:
        """`room_bytes` is the memory that the plan reserves for buffers."""
        self._engine = engine
        self._target = target
        self._draft = draft
        self._room_bytes = max(USUAL_BYTES, room_bytes)

    @property
    def held(self) -> Sequence[int]:
        """Tokens in the target's KV cache."""
        return self._engine.committed

    @property
    def can_rewind(self) -> bool:
        """True if the target can truncate its committed prefix to any length."""
        return self._target.info.tree_capable

    def check_possible(self) -> None:
        """Raise UsageError if the target's state cannot be saved, or not within the budget."""
        if not isinstance(self._target, KeepsState):
            raise UsageError(
                f"the state of {self._target.info.name} cannot be saved: its runtime does not "
                "support it; leave --prompt-cache out"
            )
        needed = self._target.state_bytes
        if needed > self._room_bytes:
            raise _no_room(self._target.info.name, needed)

    def save(self, path: Path) -> SavedState:
        """Save the models' state. Raises UsageError if their caches are empty."""
        self.check_possible()
        tokens = self._engine.committed
        if not tokens:
            raise UsageError("there is no state to save yet: read a prompt first")
        target, draft = self._states
        n_draft = self._n_draft(len(tokens))
        if draft is not None:
            draft = draft.model_copy(update={"n_tokens": n_draft}) if n_draft else None
        header = Header(
            edgespec=installed_version(),
            processor=instruction_sets(),
            n_tokens=len(tokens),
            n_tiled=self._engine.first.n_tiled,
            target=target.model_copy(update={"n_tokens": len(tokens)}),
            draft=draft,
        )
        with written(path) as writer:
            writer.begin(header, np.array(tokens))
            for model in (self._target, self._draft if header.draft else None):
                if isinstance(model, KeepsState):
                    model.write_state(writer.piece)
                    writer.end_of_model()
            writer.end()
        return SavedState(tuple(tokens), n_draft)

    def peek(self, path: Path) -> SavedState:
        """The state that `load` would load; raises StateError if `load` would."""
        self.check_possible()
        with opened(path) as reader:
            n_draft = self._check_fit(path, reader)
            reader.check()
            return SavedState(tuple(reader.tokens.tolist()), n_draft)

    def load(self, path: Path, check: Callable[[], None] = lambda: None) -> SavedState:
        """Load a file of `save`: models and engine continue as if they had computed it. Texts in
        other slots stay.

        `check` is polled and may raise. Raises StateError and leaves the models unchanged, unless
        the file changed while it was read: then their caches are empty.
        """
        kept = self.peek(path)
        try:
            with opened(path) as reader:
                if tuple(reader.tokens.tolist()) != kept.tokens:
                    raise reader.damaged()
                self._engine.first.rewind(0)
                self._take(self._target, len(kept.tokens), reader, check)
                if reader.header.draft is not None:
                    if kept.n_draft_tokens and self._draft is not None:
                        self._take(self._draft, kept.n_draft_tokens, reader, check)
                    else:
                        reader.skip_model()
                reader.end()
                self._engine.first.adopt(kept.tokens, reader.header.n_tiled)
        except BaseException:
            self._engine.first.rewind(0)
            raise
        return kept

    def _take(
        self, model: LanguageModel, n_tokens: int, reader: StateReader, check: Callable[[], None]
    ) -> None:
        assert isinstance(model, KeepsState)
        model.read_state(n_tokens, _Pieces(reader, model.info.name, self._room_bytes, check))
        reader.end_of_model()

    def _check_fit(self, path: Path, reader: StateReader) -> int:
        """Number of tokens that the draft can load. Raises StateError if the target cannot."""
        header, (target, draft) = reader.header, self._states
        if header.edgespec != (now := installed_version()):
            raise StateError(
                f"{path} is state of edgespec {header.edgespec}, and this is {now}: delete it, and "
                "it will be written again"
            )
        if header.processor != (now := instruction_sets()):
            raise StateError(
                f"{path} is state of a processor with the instruction sets {header.processor}, and "
                f"this one, which has {now}, may round otherwise: delete it, and it will be "
                "written again"
            )
        if reason := differences(header.target, target):
            raise StateError(
                f"{path} is state {reason}: load what it was made with, or name another file"
            )
        info = self._target.info
        fits = header.n_tiled <= header.target.n_tokens == header.n_tokens <= info.n_ctx
        if not fits or int(reader.tokens.max()) >= info.n_vocab:
            raise reader.damaged()
        if header.draft is None or draft is None or differences(header.draft, draft):
            return 0
        assert self._draft is not None
        n_draft = header.draft.n_tokens
        return n_draft if n_draft <= min(header.n_tokens, self._draft.info.n_ctx) else 0

    def _n_draft(self, n_tokens: int) -> int:
        """Number of tokens in the draft's cache; 0 if its state cannot be saved."""
        draft = self._draft
        if not isinstance(draft, KeepsState) or draft.state_bytes > self._room_bytes:
            return 0
        n_held = draft.committed_of(0)
        return min(n_tokens, n_held) if n_held == self._engine.first.n_leading else 0

    @cached_property
    def _states(self) -> tuple[ModelState, ModelState | None]:
        assert isinstance(self._target, KeepsState)
        target = state_of(self._target.info.name, self._target.state_origin)
        draft = self._draft
        if not isinstance(draft, KeepsState):
            return target, None
        return target, state_of(draft.info.name, draft.state_origin)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Reads the pieces of one model; implements `edgespec.ports.state.Read`."""

    reader: StateReader
    name: str
    room_bytes: int
    check: Callable[[], None]

    def size(self) -> int:
        n_bytes = self.reader.size()
        if n_bytes == 0:
            raise self.reader.damaged()
        if n_bytes > self.room_bytes:
            raise _no_room(self.name, n_bytes)
        return n_bytes

    def __call__(self, into: memoryview) -> None:
        self.check()
        self.reader.piece(into)


def _no_room(name: str, n_bytes: int) -> UsageError:
    return UsageError(
        f"the state of {name} comes in one piece of {n_bytes:,} bytes, which this session's budget "
        "does not hold: use --prompt-cache, or in Python LoadSettings(..., state_files=True)"
    )


def instruction_sets(root: Path = Path("/")) -> str:
    """Names of the processor's instruction sets that affect rounding, in one line.

    It is the machine type where the system does not list them.
    """
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    listed = (
        line.split(":", 1) for line in lines if line.lower().startswith(("flags", "features"))
    )
    for _, names in listed:
        return " ".join(sorted(name for name in names.split() if _DECIDING.match(name)))
    return platform.machine()


def state_of(name: str, origin: StateOrigin) -> ModelState:
    """The state of a model's empty cache. Raises StateError if its files cannot be read."""
    try:
        of_files = sampled_digest(origin.files)
    except OSError as error:
        raise StateError(f"{name} cannot be read: {error}") from error
    return ModelState(name=name, fingerprint=of_files, settings=dict(origin.settings), n_tokens=0)
