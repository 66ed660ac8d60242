"""Plan rows of what a session may be asked for besides texts, and of the GPU's memory.

Knows settings and prepared models; what a model needs itself, its runtime says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources import lookup
from edgespec.errors import UsageError
from edgespec.grammar.specification import GRAMMAR_BYTES, library_bytes
from edgespec.memory import process, request_memory
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.ports import Vocabulary
from edgespec.runtimes import PreparedModel
from edgespec.session.encoding import max_characters
from edgespec.settings.config import LoadSettings
from edgespec.settings.rule_names import AcceptanceName
from edgespec.settings.units import format_size

GRAMMARS = "grammars"
"""Plan row: memory that all grammars share."""
POOL = "grammars and large answers at work"
"""Plan row: pool for requests with grammars, log probabilities or several choices, which reserve
their bytes of it and wait for them."""
REQUESTS = "requests"
"""Plan row: memory for a server's requests."""
BESIDE = "a model beside"
"""Plan row: memory for a model that is loaded beside the session."""
SAMPLING_BYTES_PER_TOKEN, RULE_BYTES_PER_TOKEN = 32, 80
"""Memory per token of the vocabulary for a draw: adjusted logits in single and double precision,
and tokens in order, where filters leave most of a flat distribution. Acceptance rules that compare
probabilities hold those of target and draft besides, and what is left of them. Before the first
draw, texts of the tokens take the same memory while a model is loaded."""


def reserved_rows(
    settings: LoadSettings,
    engine_settings: EngineSettings,
    target: PreparedModel,
    grammars: bool,
) -> list[MemoryRow]:
    """The rows of a session with these settings; with `grammars`, memory for structured answers is
    kept."""
    rows = []
    replays = engine_settings.acceptance == AcceptanceName.EXACT_REPLAY
    nbytes = target.info.n_vocab * (SAMPLING_BYTES_PER_TOKEN if replays else RULE_BYTES_PER_TOKEN)
    if settings.draft is not None or engine_settings.lookup:
        nbytes += lookup.BYTES
    rows.append(MemoryRow("process", "sampling", nbytes))
    n_texts = engine_settings.n_texts(target.info)
    if grammars:
        rows.append(MemoryRow("process", GRAMMARS, _grammar_library_bytes(target)))
    if nbytes := request_memory.pool_bytes(GRAMMAR_BYTES * grammars, settings.logprobs, n_texts):
        rows.append(MemoryRow("process", POOL, nbytes))
    if settings.most_body_bytes is not None:
        rows.append(
            MemoryRow("process", REQUESTS, _request_bytes(settings.most_body_bytes, target))
        )
    if settings.beside_bytes:
        rows.append(MemoryRow("process", BESIDE, settings.beside_bytes))
    if engine_settings.draws_guesses:
        import numpy.random  # noqa: F401 - here, so that the process's row has it

        from edgespec.engine.sources import drawing  # noqa: F401
    return rows


def row_bytes(plan: MemoryPlan, what: str) -> int:
    """Bytes that a plan keeps for `what`."""
    return sum(row.nbytes for row in plan.rows if row.what == what)


def _grammar_library_bytes(target: PreparedModel) -> int:
    return library_bytes(target.info.n_vocab, sum(map(len, target.tokens())))


def without_grammars(target: PreparedModel, budget_bytes: int) -> str:
    """A note about a plan that keeps no memory for structured answers."""
    needed = format_size(_grammar_library_bytes(target) + GRAMMAR_BYTES)
    return (
        f"structured answers are refused: they need {needed} more than the models leave of the "
        f"memory budget of {format_size(budget_bytes)}"
    )


def check_grammar_memory(plan: MemoryPlan, vocabulary: Vocabulary) -> None:
    """Raise UsageError if the plan has no memory for the grammars of this vocabulary."""
    text_bytes = sum(len(vocabulary.piece(token)) for token in range(vocabulary.n_vocab))
    library = library_bytes(vocabulary.n_vocab, text_bytes)
    kept = row_bytes(plan, GRAMMARS)
    n_grammars = 0 if kept else min(request_memory.GRAMMARS_AT_ONCE, plan.n_parallel)
    needed = library + n_grammars * GRAMMAR_BYTES
    spare = kept if plan.paged else max(kept, plan.budget_bytes - plan.planned_bytes + kept)
    if spare < needed:
        way = "raise it; in Python, LoadSettings(..., grammars=True) plans for them"
        if kept:
            way = "the texts of this vocabulary are longer than its file says"
        raise UsageError(
            f"structured answers need {format_size(needed)}, of which the memory budget of "
            f"{format_size(plan.budget_bytes)} leaves {format_size(spare)}: {way}"
        )


def _request_bytes(most_body_bytes: int, target: PreparedModel) -> int:
    n_ctx, longest = target.info.n_ctx, max(map(len, target.tokens()))
    body_bytes = most_body_bytes or request_memory.max_body_bytes(n_ctx)
    return request_memory.bytes_needed(body_bytes, max_characters(longest, n_ctx))


def place_on_gpu(
    models: Sequence[PreparedModel],
    wanted: int | str | None,
    notes: Callable[[], Sequence[str]],
) -> tuple[int, tuple[MemoryRow, ...]]:
    """Budget and plan rows of the GPU's memory for target and draft; `wanted` is the setting.

    The draft is placed first, because it computes several times per round. Raises UsageError for a
    GPU budget if no model uses a GPU, with the models' `notes`.
    """
    there = [(model, model.gpu_memory) for model in reversed(models) if model.gpu_memory]
    if not there:
        if wanted is not None:
            complaint = "`gpu_memory_budget`: no GPU computes a model here, leave it out"
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
