"""Embedding models, which turn texts into vectors, loaded under a memory budget.

`load_embedder` returns an `Embedder`. Runtimes compute; `memory` divides the budget.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgespec import registry
from edgespec.concurrency.owning import Closeable, Users, close_forgotten
from edgespec.concurrency.worker import Worker
from edgespec.errors import BudgetError, SessionClosed, UsageError
from edgespec.memory import process
from edgespec.memory.budget import MemoryPlan
from edgespec.ports import EmbeddingModel, Progress, unknown_token
from edgespec.registry import PreparedEmbedder
from edgespec.session.opening import checked
from edgespec.session.prepared_models import divided_budget, target_request
from edgespec.session.tokenizer import Tokenizer
from edgespec.settings import arguments
from edgespec.settings.config import LoadSettings
from edgespec.values import ModelInfo, PagingStats


def load_embedder(
    settings: LoadSettings | str | Path, progress: Progress | None = None
) -> Embedder:
    """Load an embedding model so that the process stays within the budget from now on.

    The arguments are those of `load`. Raises ModelError for a model that writes texts,
    BudgetError or UsageError, and then leaves nothing open.
    """
    with _planned(settings, progress) as (prepared, plan), Worker() as worker:
        if too_large := process.note_on_plan(plan.planned_bytes):
            raise BudgetError(too_large)
        return Embedder(worker.run(partial(prepared.load, plan, progress), prepared.cancel), plan)


def plan_embedder(settings: LoadSettings | str | Path) -> MemoryPlan:
    """The memory plan of an embedding model, without reading weights. Raises the errors of
    `load_embedder`."""
    with _planned(settings) as (_, plan):
        return plan


class Embedder(Closeable):
    """A loaded embedding model that any thread may use; close it to free memory and files.

    `embed` is llama-cpp-python's; one text is computed at a time.
    """

    def __init__(self, model: EmbeddingModel, plan: MemoryPlan) -> None:
        self.plan = plan
        self._model = model
        self._turn = threading.Lock()
        self._users = Users("the embedding model", SessionClosed)
        self._tokenizer = Tokenizer(model.vocabulary, model.info.n_ctx, self._users)

    @property
    def target(self) -> ModelInfo:
        """Properties of the model; `n_ctx` is the longest text in tokens."""
        return self._model.info

    @property
    def n_values(self) -> int:
        """Length of a vector."""
        return self._model.n_values

    @property
    def paging(self) -> PagingStats:
        """Paging statistics since the model was loaded."""
        return self._model.paging()

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the tokens that the model puts around it.

        Raises ContextOverflow for a text that is far longer than the context.
        """
        return self._tokenizer.encode(arguments.text("text", text))

    def vector(self, tokens: Sequence[int], normalize: bool = False) -> np.ndarray:
        """The vector of a text's tokens, float32 [n_values]; of length 1 with `normalize`.

        Raises UsageError for no tokens or unknown ones, and ContextOverflow.
        """
        tokens = arguments.token_ids("the text", tokens)
        for token in tokens:
            if not 0 <= token < self.target.n_vocab:
                raise unknown_token(token, self.target.n_vocab)
        with self._users, self._turn:
            vector = self._model.embed(tokens)
        if normalize and (length := float(np.linalg.norm(vector))):
            vector = vector / np.float32(length)
        return vector

    def embed(
        self,
        input: str | Sequence[str],  # noqa: A002 - llama-cpp-python's name
        normalize: bool = False,
    ) -> list[Any]:
        """The vector of a text, or those of several, as lists of numbers.

        `normalize` makes their length 1. A text longer than the context is refused, not truncated.
        """
        if isinstance(input, str):
            return [*map(float, self.vector(self.encode(input), normalize))]
        return [self.embed(text, normalize) for text in arguments.texts("the input", input)]

    def cancel(self) -> None:
        """Make the running computation raise Cancelled; from any thread."""
        if self._users.inside:
            self._model.cancel()

    def close(self) -> None:
        """End the running computation and free everything. Idempotent."""
        self._users.close(self._model.cancel, self._model.close)

    def __del__(self) -> None:
        users: Users | None = getattr(self, "_users", None)
        if users is not None and not users.is_released:
            close_forgotten(self, partial(users.close, self._model.cancel, self._model.close))


@contextmanager
def _planned(
    settings: LoadSettings | str | Path, progress: Progress | None = None
) -> Iterator[tuple[PreparedEmbedder, MemoryPlan]]:
    """An embedding model whose weights are not read, with its plan."""
    found, *_ = checked(settings, None, progress)
    if found.draft is not None:
        raise UsageError(
            f"{found.model.name} turns texts into vectors, so that nothing is guessed:"
            " leave the draft out"
        )
    budget_bytes = process.resolve_budget(found.memory_budget)
    runtime = registry.find(found.model)
    request = target_request(found, runtime, budget_bytes)
    with closing(runtime.prepare_embedder(request)) as prepared:
        plan = divided_budget(budget_bytes, found, prepared.needs(), request_bytes=found.reserve)
        yield prepared, replace(plan, enforced=prepared.enforced)
