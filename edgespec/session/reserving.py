"""Plan rows of what a session may be asked for besides texts, and of the GPU's memory.

Knows settings and prepared models; what a model needs itself, its runtime says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.engine.encoding import max_characters
from edgespec.engine.settings import EngineSettings
from edgespec.errors import UsageError
from edgespec.grammar.specification import GRAMMAR_BYTES, library_bytes
from edgespec.memory import process, requests
from edgespec.memory.budget import MemoryRow
from edgespec.memory.needs import ModelNeeds
from edgespec.runtimes import PreparedModel, UsesGpu
from edgespec.settings.config import LoadSettings

GRAMMARS = "grammars"
"""Plan row: memory that all grammars share."""
POOL = "grammars and large answers at work"
"""Plan row: pool for requests with grammars, log probabilities or several choices, which reserve
their bytes of it and wait for them."""
REQUESTS = "requests"
"""Plan row: memory for a server's requests."""
TEXTS_TO_LEARN = "texts to learn from"
"""Plan row: memory for the corrections that `learn` records."""
STATE_FILES = "state files"
"""Plan row: buffers for the largest piece of a state file."""


def reserved_rows(
    settings: LoadSettings,
    engine_settings: EngineSettings,
    target: PreparedModel,
    needs: Sequence[ModelNeeds],
) -> list[MemoryRow]:
    """The rows of a session with these settings; `needs` are those of all its models."""
    rows = []
    n_texts = 1 if engine_settings.draws_guesses else target.info.n_texts
    if settings.grammars:
        rows.append(MemoryRow("process", GRAMMARS, library_bytes(target.info.n_vocab)))
    grammar_bytes = GRAMMAR_BYTES if settings.grammars else 0
    if nbytes := requests.pool_bytes(grammar_bytes, settings.logprobs, n_texts):
        rows.append(MemoryRow("process", POOL, nbytes))
    if settings.most_body_bytes is not None:
        rows.append(
            MemoryRow("process", REQUESTS, _request_bytes(settings.most_body_bytes, target))
        )
    if engine_settings.learn:
        from edgespec.engine import corrections

        nbytes = corrections.bytes_needed(target.info.n_vocab, n_texts)
        rows.append(MemoryRow("process", TEXTS_TO_LEARN, nbytes))
    if settings.state_files:
        max_bytes = max(need.state_bytes for need in needs)
        rows.append(MemoryRow("process", STATE_FILES, max_bytes))
    return rows


def _request_bytes(most_body_bytes: int, target: PreparedModel) -> int:
    n_ctx, longest = target.info.n_ctx, max(map(len, target.tokens()))
    body_bytes = most_body_bytes or requests.max_body_bytes(n_ctx)
    return requests.bytes_needed(body_bytes, max_characters(longest, n_ctx))


def place_on_gpu(
    models: Sequence[PreparedModel],
    wanted: int | str | None,
    notes: Callable[[], Sequence[str]],
) -> tuple[int, tuple[MemoryRow, ...]]:
    """Budget and plan rows of the GPU's memory for target and draft; `wanted` is the setting.

    The draft is placed first, because it computes several times per round. Raises UsageError for a
    GPU budget if no model uses a GPU, with the models' `notes`.
    """
    there = [
        (model, model.gpu_memory)
        for model in reversed(models)
        if isinstance(model, UsesGpu) and model.gpu_memory
    ]
    if not there:
        if wanted is not None:
            complaint = "--gpu-memory-budget: no GPU computes a model here, leave it out"
            raise UsageError("; ".join([complaint, *notes()]))
        return 0, ()
    _, gpu = there[0]
    budget_bytes = process.resolve_gpu_budget(wanted, gpu.free_bytes, gpu.total_bytes)
    rows = [MemoryRow("process", f"libraries of {gpu.name}", gpu.reserved_bytes)]
    for model, _ in there:
        rows += model.place(max(0, budget_bytes - sum(row.nbytes for row in rows)))
    if len(rows) == 1:  # nothing fits
        return budget_bytes, ()
    return budget_bytes, tuple(rows)
