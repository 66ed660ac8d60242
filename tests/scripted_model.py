"""A runtime whose model writes prepared answers: its tokens are bytes, its file is empty.

The answer to a prompt is that of a function of the whole prompt; drafts, budgets and caches work as
with any other model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgespec.memory.budget import MIB, MemoryRow
from edgespec.memory.needs import BatchNeeds, ModelNeeds
from edgespec.ports import Progress
from edgespec.registry import MemoryPlan, ModelRequest, PreparedModel, Runtime
from fake_model import FakeModel, FakeVocabulary

END = 256
PIECES = [*(bytes([byte]) for byte in range(END)), b"<end>"]
N_CTX = 400_000


class ByteVocabulary(FakeVocabulary):
    """Each token is a byte; the last one ends a text."""

    def __init__(self) -> None:
        super().__init__(len(PIECES), [END], PIECES)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [*text.encode()]


class ScriptedLanguage:
    """Logits that write the answer of a script after `start`, with which each answer begins."""

    def __init__(self, script: Callable[[str], str], start: str) -> None:
        self._script, self._start = script, start.encode()
        self._answers: dict[bytes, bytes] = {}

    def __call__(self, context: tuple[int, ...]) -> np.ndarray:
        text = bytes(token for token in context if token < END)
        begin = text.rfind(self._start) + len(self._start)
        prompt, written = text[:begin], text[begin:]
        if prompt not in self._answers:
            self._answers[prompt] = self._script(prompt.decode(errors="replace")).encode()
        answer = self._answers[prompt]
        logits = np.zeros(len(PIECES), np.float32)
        logits[answer[len(written)] if len(written) < len(answer) else END] = 50
        return logits


class PreparedScript(PreparedModel):
    """The scripted model before loading, which takes no memory to speak of."""

    enforced = True

    def __init__(self, request: ModelRequest, language: ScriptedLanguage) -> None:
        self.seconds: dict[str, float] = {}
        self._owner = request.owner
        self._model = FakeModel(
            language,
            len(PIECES),
            n_ctx=N_CTX,
            eog_tokens=[END],
            pieces=PIECES,
            max_nodes=max(2, request.max_nodes),
        )
        self._model.vocabulary = ByteVocabulary()
        self.info = self._model.info

    def tokens(self) -> list[bytes]:
        return PIECES

    def needs(self) -> ModelNeeds:
        rows = (MemoryRow(self._owner, "script", MIB),)
        return ModelNeeds(fixed=(), batches=(BatchNeeds(32, rows),), resident=())

    def load(self, plan: MemoryPlan | None, progress: Progress | None = None) -> FakeModel:
        return self._model

    def cancel(self) -> None:
        """Loading takes no time."""

    def close(self) -> None:
        """Nothing is open."""


class ScriptedRuntime(Runtime):
    """Runs files that end in `.script`."""

    name = "script"

    def __init__(self, script: Callable[[str], str], start: str) -> None:
        self._language = ScriptedLanguage(script, start)

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".script"

    def prepare(self, request: ModelRequest) -> PreparedScript:
        return PreparedScript(request, self._language)
