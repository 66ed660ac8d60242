"""Reading of prompts: the part that comes next, in a pass of its own or in one with trees, and the
first token at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgespec.engine.slot import is_tiled
from edgespec.engine.text import Text, ending
from edgespec.errors import Cancelled
from edgespec.pool import line
from edgespec.ports import PassPart
from edgespec.tracing.spans import Track

if TYPE_CHECKING:
    from edgespec.engine.engine import Engine

MIN_PROMPT_ROWS = 64
"""Prompt tokens that a pass of several texts reads even if reads do not hide their compute time."""
MAX_TIMING_S = 0.3
"""Most seconds in which passes of few rows are timed, once for a model and machine."""


def next_parts(engine: Engine, texts: Sequence[Text]) -> tuple[list[PassPart], int]:
    """The parts of prompts in the next pass, the shortest prompts first, and the most nodes of
    the trees in it.

    If texts share the pass, prompts get the rows whose compute time is hidden, at least
    `MIN_PROMPT_ROWS`, so that a long prompt does not stop other texts.
    """
    info, max_nodes = engine.target.info, engine.limits.max_nodes
    reading = sorted((t for t in texts if t.is_reading), key=lambda text: text.n_left)
    n_trees = sum(text.is_growing for text in texts)
    n_hidden, shares = engine.ledger.prices.n_hidden(info.max_rows), info.prompts_share_passes
    left = (info.max_rows if shares else max_nodes) - n_trees
    if not (shares or info.prompts_give_logits):  # prompts read alone now get trees in this pass
        left -= len(reading) - 1
    if shares and len(texts) > 1:
        left = min(left, max(MIN_PROMPT_ROWS, n_hidden - n_trees))
    parts: list[PassPart] = []
    for text in reading:
        with ending([text]):
            part, is_alone = text.next_reads(engine.pool, left, len(texts) > 1)
            if is_alone:
                try:
                    [logits] = text.slot.target.evaluate([part], text.progress_of(part.n_rows))
                except Cancelled:
                    take_whole_passes(engine, text, part)
                    raise
                take(engine, text, part, logits)
                if engine.sources:
                    n_context = None if len(texts) > 1 else len(text.slot.committed)
                    engine.ledger.see_prompt(engine.target.last_report, n_context)
                    if n_context and text.n_left <= 1 and text.is_at_work:
                        time_sizes(engine, text)
            elif left > 0:
                parts.append(part)
                left -= part.n_rows
    n_rows = sum(part.n_rows for part in parts)
    n_nodes = max_nodes - sum(len(part.nodes) for part in parts)
    # trees have the rest of the rows whose compute time is hidden, so as not to delay prompts
    n_cheap = max(2 * n_trees, n_hidden - n_rows) if parts else max_nodes
    return parts, min(n_nodes, info.max_rows - n_rows, n_cheap)


def take(engine: Engine, text: Text, part: PassPart, logits: np.ndarray) -> None:
    """Commit a part of a prompt that a pass has read. Its last row gives the first token."""
    slot, tally, is_end = text.slot, text.tally, part.n_rows == text.n_left
    slot.committed += part.reads
    if part.nodes:
        slot.target.commit(part.pool, part.nodes, slot=slot.number)
        slot.committed += part.pool.token[list(part.nodes)].tolist()
    if is_tiled(engine.target.info, text.prompt) and not part.by_row:
        slot.n_tiled = len(slot.committed)
    if is_end:
        token = text.sampler.pick(logits[-1])
        n_rounds, logprobs = len(tally.rounds), text.sampler.latest_logprobs
        text.events.append(text.transcript.take(token, n_rounds, logprobs))
        engine.pool.plant(slot.number, token)
    now_s = engine.clock()
    tally.read_tokens += part.n_rows
    text.charge(now_s - text.begun_s, gave_token=is_end)
    engine.trace.add(Track.ENGINE, "prompt", text.begun_s, now_s, tokens=part.n_rows)
    text.begun_s = now_s
    text.tell(len(text.reading) if is_end else len(slot.committed))


def take_whole_passes(engine: Engine, text: Text, part: PassPart) -> None:
    """Keep the passes over a part of a prompt that were made before one was cancelled: the rest is
    cut into the same ones again, unless it is so short that its rows round as nodes do."""
    slot, info = text.slot, text.slot.target.info
    n_read = max(0, slot.target.committed_of(slot.number) - len(slot.committed))
    reads_alone = info.prompts_give_logits or not info.tree_capable
    is_exact = reads_alone or text.n_left - n_read > info.max_nodes
    take(engine, text, part._replace(nodes=(), reads=part.reads[: n_read * is_exact]), np.empty(0))


def time_sizes(engine: Engine, text: Text) -> None:
    """Time passes over few rows before the first token is shown, so that the first guesses know
    their price. Their KV is dropped.

    Sizes are timed once for a model and machine, twice each, as far as that takes no longer than
    `MAX_TIMING_S`; the faster pass counts.
    """
    slot, spent_s = text.slot, 0.0
    n_free = min(engine.target.info.n_ctx - len(slot.committed), engine.target.info.max_nodes)
    fastest: dict[int, float] = {}
    for n_rows in engine.ledger.untimed(n_free) * 2:
        if spent_s + float(engine.ledger.prices.pass_s(n_rows)) > MAX_TIMING_S:
            continue
        with engine.trace.span(Track.ENGINE, "time a pass").note(nodes=n_rows):
            rows = line(slot.number, [0] * n_rows)
            slot.target.evaluate([PassPart(slot.number, rows, range(n_rows))])
        now_s = slot.target.last_report.wall_s
        slot.target.truncate(len(slot.committed), slot.number)
        spent_s += now_s
        fastest[n_rows] = min(now_s, fastest.get(n_rows, now_s))
    for n_rows, seconds in fastest.items():
        engine.ledger.prices.put(n_rows, seconds)
