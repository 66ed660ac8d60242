"""Compares what two models compute: logits along greedy texts, and their tokens.

Knows how to read a text through the port; nothing of how either model was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgespec.concurrency.worker import Worker
from edgespec.engine.settings import EngineSettings
from edgespec.ports import LanguageModel, Progress
from edgespec.session.session import open_models
from edgespec.settings.config import LoadSettings
from edgespec.tree import TokenTree

T = TypeVar("T")

ROUNDING = 0.01
"""Largest difference of two logits that rounding explains, as a share of the logits' spread.

The same weights in another order of summation differ by less than 1e-5. Where llama.cpp repacks the
weights of one of the models, activations that lie a bit apart are now and then quantised one step
apart, and logits differ by up to 0.5 %. A layer or a tensor that is not what it should be moves
logits by the size of their spread.
"""
N_TOKENS = 64
"""Tokens of each text."""
PROMPT_TOKENS = 63
"""Most that are read of a prompt, so that a context of 128 holds its text."""

Reads = Callable[[Sequence[int], int], np.ndarray]
"""Given a text and a place in it: logits after each token from that place on, float32 [n, n_vocab].
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Agreement of two models on the same texts. Differences are those of logits."""

    texts: int
    tokens: int
    """Places compared."""
    equal: int
    """Places at which both models rank the same token first."""
    largest_difference: float
    spread: float
    """The largest logit less the smallest one, the mean over all places."""

    @property
    def allowed_difference(self) -> float:
        return ROUNDING * self.spread

    @property
    def is_same(self) -> bool:
        """Equal to within rounding: tokens differ then only where two are as good as equal."""
        return self.largest_difference <= self.allowed_difference

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {
            "allowed_difference": self.allowed_difference,
            "is_same": self.is_same,
        }


def compare_files(
    source: Path,
    other: Path,
    memory_budget: int | str,
    prompts: Sequence[str],
    progress: Progress,
) -> Comparison:
    """Compare the model `other`, paged if it must be, with `source`, which stays in memory.

    Raises what loading raises: BudgetError where the budget is too small for both.
    """
    settings = LoadSettings(
        model=other,
        draft=source,
        memory_budget=memory_budget,
        ctx_size=PROMPT_TOKENS + N_TOKENS + 1,
    )
    rules = EngineSettings(draft_max=N_TOKENS - 1)
    with open_models(settings, rules, progress) as models, Worker() as worker:
        assert models.draft is not None
        vocabulary = models.target.vocabulary
        return compare(
            PortReader(models.draft, worker),
            PortReader(models.target, worker),
            [vocabulary.encode(prompt)[:PROMPT_TOKENS] for prompt in prompts],
            progress,
        )


def compare(
    source: Reads, other: Reads, prompts: Sequence[Sequence[int]], progress: Progress
) -> Comparison:
    """Let `source` continue each prompt greedily; both models then read the text, as one batch.

    Where `other` ranks first, at every place, the token that `source` wrote, it would have written
    the same text. Reading takes a large model a pass or two, writing would take one for each token.
    Whether the rows of a batch round as single ones do depends on where the weights lie: at every
    place the nearer counts of what `source` says token by token and of what it says of the batch.
    """
    n_places = len(prompts) * N_TOKENS
    largest, spreads, equal = 0.0, [], 0
    for index, prompt in enumerate(prompts):
        text, rows = list(prompt), []
        for n in range(N_TOKENS):
            progress("comparing", (index + n / N_TOKENS) / len(prompts))
            rows.append(source(text, len(text) - 1)[-1])
            text.append(int(rows[-1].argmax()))
        start = len(prompt) - 1
        written, batch, found = np.stack(rows), source(text[:-1], start), other(text[:-1], start)
        apart = [np.abs(found - expected).max(axis=1) for expected in (written, batch)]
        largest = max(largest, float(np.minimum(*apart).max()))
        spreads.append(float(np.ptp(written, axis=1).mean()))
        equal += int((found.argmax(axis=1) == written.argmax(axis=1)).sum())
    progress("comparing", 1.0)
    return Comparison(len(prompts), n_places, equal, largest, float(np.mean(spreads)))


class PortReader:
    """Reads texts with a model behind the port; what two texts have in common is read once."""

    def __init__(self, model: LanguageModel, worker: Worker) -> None:
        self._model = model
        self._worker = worker
        self._read: list[int] = []

    def __call__(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """Logits after `tokens[start:]`, at most `max_nodes` of them a pass."""
        common = _common_length(self._read[:start], tokens)
        self._model.truncate(common)
        self._read = list(tokens[:start])
        if common < start:
            self._run(partial(self._model.prefill, tokens[common:start]))
        step = self._model.info.max_nodes
        pieces = (tokens[begin : begin + step] for begin in range(start, len(tokens), step))
        logits = np.concatenate([self._evaluate(piece) for piece in pieces])
        self._read = list(tokens)
        return logits

    def _evaluate(self, tokens: Sequence[int]) -> np.ndarray:
        tree = TokenTree(tokens[0], len(tokens))
        for parent, token in enumerate(tokens[1:]):
            tree.add(parent, token, confidence=1.0)
        nodes = range(len(tokens))
        logits = self._run(partial(self._model.evaluate, tree, nodes))
        self._model.commit(tree, nodes)
        return logits

    def _run(self, call: Callable[[], T]) -> T:
        return self._worker.run(call, self._model.cancel)


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of leading tokens that two texts share."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))
