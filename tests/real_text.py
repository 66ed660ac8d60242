"""Texts of a real pair for the virtual clock: what a target and a draft really say."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from llama_cpp import Llama

from fake_model import Language

LONGEST_PROMPT = 160


class RealLanguage:
    """Logits of a small resident model after any context; each context is computed once."""

    def __init__(self, path: str) -> None:
        self._model = Llama(path, n_ctx=1024, logits_all=True, n_threads=1, verbose=False)
        self._rows: dict[tuple[int, ...], np.ndarray] = {}
        self.n_vocab = self._model.n_vocab()

    def __call__(self, context: tuple[int, ...]) -> np.ndarray:
        if context not in self._rows:
            held = self._model.input_ids[: self._model.n_tokens]
            compared = zip(held, context[:-1], strict=False)
            differing = (n for n, (one, other) in enumerate(compared) if one != other)
            self._model.n_tokens = next(differing, min(len(held), len(context) - 1))
            self._model.eval(context[self._model.n_tokens :])
            self._rows[context] = self._model.scores[len(context) - 1].astype(np.float16)
        return self._rows[context].astype(np.float32)

    def tokens(self, text: str) -> list[int]:
        return self._model.tokenize(text.encode(), special=False)[:LONGEST_PROMPT]

    def close(self) -> None:
        self._model.close()


@dataclass(frozen=True)
class RealText:
    """A prompt of a real pair, in the form of `virtual_text.VirtualText`."""

    tokens: Sequence[int]
    target: Language = field(repr=False)
    draft: Language = field(repr=False)

    @property
    def n_prompt(self) -> int:
        return len(self.tokens)

    def prompt(self, n: int) -> list[int]:
        return [*self.tokens]


def real_texts(
    owned: ExitStack, target: str, draft: str, prompts: Sequence[str]
) -> tuple[list[RealText], int]:
    """The texts after `prompts`, and the number of tokens of the vocabulary."""
    models = [RealLanguage(target), RealLanguage(draft)]
    for model in models:
        owned.callback(model.close)
    texts = [RealText(models[0].tokens(prompt), *models) for prompt in prompts]
    return texts, models[0].n_vocab
