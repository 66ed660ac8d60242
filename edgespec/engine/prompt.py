"""Prompt reading: reuses the common prefix, evaluates the rest, and picks the first token.

Knows the slot and the request; it does not draft.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from edgespec.engine.request import ActiveRequest
from edgespec.ports import PassPart, Progress
from edgespec.tracing.spans import Track
from edgespec.tree import ROOT, TokenTree, common_length
from edgespec.values import ModelInfo, PassReport

if TYPE_CHECKING:
    from edgespec.engine.slot import Slot

N_LEFT = 8
"""Last tokens of a prompt that a model with recurrent state reads in one pass. The state before
them is kept, as a template may omit them in the next turn."""
MAX_TIMING_S = 0.3
"""Most seconds in which passes of few rows are timed, once for a model and machine."""
ALIKE = 0.1
"""Relative difference below which two passes of a size took the same time."""
MIN_PROMPT_ROWS = 64
"""Prompt tokens that a pass of several texts reads even if reads do not hide their compute time."""


def read_prompt(slot: Slot, n_others: int = 0) -> Iterator[Literal[False]]:
    """Commit the prompt without its last token, reusing the KV that the target holds; with its last
    token, if the model can read that, too, and give the first one of the text.

    Yields False between passes if there are `n_others` other active texts, and after the first
    token. What passes can read together with trees of other texts is left to `parts_of`. Drafters
    read the prompt if guesses are planned.
    """
    request = slot.request
    request.check_cancelled()
    prompt = list(request.reading)
    begun = slot.clock()
    _reuse(slot, prompt)
    reused = len(slot.committed)
    _tell(request, reused)
    unread, n_passes = _own_part(slot, prompt, n_others)
    if request.held is None:
        slot.n_known = request.tally.reused_tokens = reused
        request.tally.saved_passes = _n_passes(slot, len(prompt)) - n_passes
    report = None
    for end in _portions(slot, unread) if n_others else [len(unread)] * bool(unread):
        n_read = len(slot.committed) - reused
        if n_read:
            yield False
        _read(slot, unread[n_read:end])
        report = _sum(report, slot.target.last_report)
    gave_first = not slot.n_left
    _plan(slot, report, n_others)
    if gave_first:
        _end_reading(slot, begun, reused)
        yield False
        begun = slot.clock()
        _draft_reads(slot)
        _charge(slot, begun)
    else:
        _draft_reads(slot)
        _end_reading(slot, begun, reused)


def _own_part(slot: Slot, prompt: Sequence[int], n_others: int) -> tuple[Sequence[int], int]:
    """The next tokens of a prompt, which passes of its own read, and the number of passes until its
    first token."""
    info, reused = slot.target.info, len(slot.committed)
    shares, rest = info.prompts_share_passes, prompt[reused:]
    if not info.tree_capable:
        n_left = 1 + N_LEFT * shares
        unread = rest[: max(0, len(rest) - n_left)]
        return unread, _n_passes(slot, 1 + len(unread))
    gives_first = info.prompts_give_logits and len(rest) > 1
    if not _is_tiled(slot, prompt):
        fits = len(rest) + n_others <= info.max_nodes
        if fits and (shares or reused) and (n_others or not gives_first):
            return [], 1
        if shares:
            return [], _n_passes(slot, len(rest))
    return rest if gives_first else rest[:-1], _n_passes(slot, len(rest))


def _read(slot: Slot, tokens: Sequence[int]) -> None:
    """Read the next tokens of a prompt in passes of their own. Its last token gives the first one
    of the text."""
    part = PassPart(slot.number, reads=tokens)
    if len(tokens) == slot.n_left:
        part = PassPart(slot.number, TokenTree(tokens[-1], 1), [ROOT], tokens[:-1])
    progress = _progress_of(slot.request, len(slot.committed), len(tokens))
    [logits] = slot.target.evaluate([part], progress)
    take_part(slot, part, logits)
    if 0 < slot.target.info.prompt_tile <= len(slot.committed):
        slot.n_tiled = len(slot.committed)


def _end_reading(slot: Slot, begun: float, reused: int) -> None:
    """Count and trace the seconds since `begun` as those of reading the prompt."""
    _charge(slot, begun)
    n_tokens = len(slot.request.reading)
    slot.trace.add(Track.ENGINE, "prompt", begun, slot.clock(), tokens=n_tokens, reused=reused)


def _charge(slot: Slot, begun: float) -> None:
    """Count the seconds since `begun` as those of reading the prompt."""
    request, seconds = slot.request, slot.clock() - begun
    if request.held is None:
        request.tally.read_prompt(seconds, gave_token=not slot.n_left)
    else:
        request.tally.shift_s += seconds


def _reuse(slot: Slot, prompt: Sequence[int]) -> None:
    """Keep the prefix of `prompt` that the slot holds, or load a longer one that is stored."""
    request = slot.request
    n_held, prefixes = reusable(slot, prompt, request.terms.client), slot.prefixes
    if n_held < len(slot.committed):
        while slot.store_block():
            request.check_cancelled()
    slot.rewind(n_held)
    slot.client = request.terms.client
    if prefixes is None or request.held is not None:
        return
    if trouble := prefixes.take_trouble():
        request.tally.note(trouble)
    prefixes.begin(slot.client)
    is_tiled = _is_tiled(slot, prompt)
    if slot.target.info.prompt_tile and not is_tiled:
        return
    text = prompt[: _most_reusable(slot, prompt)]
    n_available = prefixes.n_available(text)
    if n_available <= n_held:
        return
    with slot.trace.span(Track.ENGINE, "load a prefix").note(tokens=n_available):
        slot.rewind(n_held - n_held % prefixes.block_tokens)
        text, n_held = text[:n_available], len(slot.committed)
        n_held = prefixes.load(text, n_held, request.check_cancelled)
        slot.committed[:] = text[:n_held]
        slot.n_tiled = n_held if is_tiled else 0
        if slot.grower is not None:
            prefixes.load_draft(text[:n_held], slot.n_leading, request.check_cancelled)


def _tell(request: ActiveRequest, n_read: float) -> None:
    """Report that `n_read` tokens of the prompt are read or were in the cache."""
    if request.progress is not None:
        request.progress("reading the prompt", min(1.0, n_read / len(request.reading)))


def _progress_of(request: ActiveRequest, n_before: int, n_tokens: int) -> Progress | None:
    """Callback for a part of the prompt; it reports the share of the whole prompt."""
    if request.progress is None:
        return None
    return lambda _, share: _tell(request, n_before + share * n_tokens)


def _portions(slot: Slot, unread: Sequence[int]) -> list[int]:
    """Ends of the passes over a prompt. They are of equal size, and none is smaller than a tile,
    which would round differently."""
    n_tiles = len(unread) // max(1, slot.target.info.prompt_tile)
    n_passes = min(-(-len(unread) // slot.target.info.prompt_batch), max(1, n_tiles))
    return [len(unread) * (n + 1) // n_passes for n in range(n_passes)]


def _sum(before: PassReport | None, now: PassReport) -> PassReport:
    """The report of both readings together."""
    if before is None:
        return now
    return replace(
        now,
        wall_s=before.wall_s + now.wall_s,
        stall_s=before.stall_s + now.stall_s,
        choice_stall_s=before.choice_stall_s + now.choice_stall_s,
        bytes_read=before.bytes_read + now.bytes_read,
        read_s=before.read_s + now.read_s,
        passes=before.passes + now.passes,
        n_tokens=before.n_tokens + now.n_tokens,
    )


def _plan(slot: Slot, report: PassReport | None, n_others: int) -> None:
    """Begin to plan a text whose prompt was read as in `report`. Passes that have to be timed are
    timed before its first token is shown, as no later one should wait for them."""
    planner = slot.planner
    if slot.grower is None:
        return
    room = slot.request.transcript.room
    n_context = None if n_others else len(slot.committed)
    planner.credit.begin_text(slot.n_unread, room, beside=n_others > 0)
    if report is not None:
        planner.see_prompt(report, n_context)
    if not n_others and slot.is_at_work:
        _time_sizes(slot)


def _draft_reads(slot: Slot) -> None:
    """Let the drafters read the prompt if guesses are planned."""
    planner = slot.planner
    if slot.grower is not None and planner.choose():
        slot.grower.prepare(slot.committed, int(slot.tree.token[ROOT]))
        begun = slot.clock()
        slot.catch_up(slot.grower)
        planner.see_reading(slot.clock() - begun)


def _time_sizes(slot: Slot) -> None:
    """Time passes over few rows, so that the first guesses know their price. Their KV is dropped.

    Sizes are timed once for a model and machine, twice each, or three times where these differ, as
    far as that takes no longer than `MAX_TIMING_S`; the fastest pass counts.
    """
    n_free = min(slot.target.info.n_ctx - len(slot.committed), slot.target.info.max_nodes)
    sizes, spent_s = slot.planner.untimed(n_free), 0.0
    fastest: dict[int, float] = {}
    settled: set[int] = set()
    for n_rows, expected_s in sizes * 3:
        if n_rows in settled or spent_s + expected_s > MAX_TIMING_S:
            continue
        tree = TokenTree(0, n_rows)
        for node in range(n_rows - 1):
            tree.add(node, 0, confidence=1.0)
        with slot.trace.span(Track.ENGINE, "time a pass").note(nodes=n_rows):
            slot.target.evaluate([PassPart(slot.number, tree, range(n_rows))])
        now_s = slot.target.last_report.wall_s
        slot.target.truncate(len(slot.committed), slot.number)
        spent_s += now_s
        before_s = fastest.get(n_rows, math.inf)
        if abs(now_s - before_s) < ALIKE * now_s:
            settled.add(n_rows)
        fastest[n_rows] = min(before_s, now_s)
    for n_rows, seconds in fastest.items():
        curve = slot.planner.costs.curve
        curve.put(n_rows, seconds / curve.slowdown, curve.initial_variance)


def parts_of(
    slots: Sequence[Slot], info: ModelInfo, n_trees: int, max_nodes: int, n_hidden: int
) -> list[PassPart]:
    """Parts of prompts in a pass with `n_trees` trees, the shortest prompts first.

    If texts share the pass, prompts get the rows whose compute time is hidden (`n_hidden`), at
    least `MIN_PROMPT_ROWS`, so that a long prompt does not stop other texts.
    """
    left = (info.max_rows if info.prompts_share_passes else max_nodes) - n_trees
    if info.prompts_share_passes and n_trees + len(slots) > 1:
        left = min(left, max(MIN_PROMPT_ROWS, n_hidden - n_trees))
    parts: list[PassPart] = []
    for slot in sorted(slots, key=lambda slot: slot.n_left):
        if left > 0:
            parts.append(_next_part(slot, left))
            left -= parts[-1].n_rows
    return parts


def _next_part(slot: Slot, most: int) -> PassPart:
    """The next tokens of a prompt, at most `most`. The last one is a node of a tree; so are the
    others, unless the model reads prompts in shared passes."""
    begin, reading = len(slot.committed), slot.request.reading
    tokens = reading[begin : begin + most]
    if slot.target.info.prompts_share_passes:
        is_end = begin + len(tokens) == len(reading)
        reads = tokens[:-1] if is_end else tokens
        return PassPart(slot.number, TokenTree(tokens[-1], 1), range(is_end), reads)
    tree = TokenTree(tokens[0], len(tokens))
    for node, token in enumerate(tokens[1:]):
        tree.add(node, token, confidence=1.0)
    return PassPart(slot.number, tree, range(len(tree)))


def take_part(slot: Slot, part: PassPart, logits: np.ndarray) -> None:
    """Commit a part of a prompt that a pass has read. Its last node also gives the first token."""
    request, event = slot.request, None
    if part.nodes and part.n_rows == slot.n_left:
        token, round_ = request.sampler.pick(logits[-1]), len(request.tally.outcomes)
        event = request.transcript.take(token, "target", round_, request.sampler.latest_logprobs)
    slot.committed += part.reads
    if part.nodes:
        slot.commit(part.tree, part.nodes)
    if event is not None and slot.joined_at is not None:
        _charge(slot, slot.joined_at)
    _tell(request, len(slot.committed))
    if event is not None:
        slot.events.append(event)
        slot.tree = TokenTree(event.token, slot.tree.capacity)


def reusable(slot: Slot, prompt: Sequence[int], client: str) -> int:
    """Number of leading tokens of a prompt of `client` whose KV the target holds exactly as reading
    all of the prompt would compute it, so that earlier texts do not change the output."""
    if slot.client != client:
        return 0
    held = common_length(slot.committed, prompt[:-1])
    if _is_tiled(slot, prompt):
        held = min(held, slot.n_tiled)
        whole = len(prompt) - 1
        is_whole = held == whole and not slot.target.info.prompts_give_logits
        return whole if is_whole else min(held, _most_reusable(slot, prompt))
    return 0 if slot.n_tiled else held


def _most_reusable(slot: Slot, prompt: Sequence[int]) -> int:
    """Most leading tokens of `prompt` after which the rest is computed as a part of all of it."""
    if _is_tiled(slot, prompt):
        return _n_as_prompt(slot, prompt) - slot.target.info.prompt_tile
    return len(prompt) - 1


def _is_tiled(slot: Slot, prompt: Sequence[int]) -> bool:
    """True if a prompt is computed in tiles, unlike generated tokens."""
    return 0 < slot.target.info.prompt_tile <= _n_as_prompt(slot, prompt)


def _n_as_prompt(slot: Slot, prompt: Sequence[int]) -> int:
    """Number of tokens that are computed as a prompt's: without the last one, if it needs a pass of
    its own."""
    return len(prompt) - (not slot.target.info.prompts_give_logits)


def _n_passes(slot: Slot, n_tokens: int) -> int:
    """Number of passes over the last `n_tokens` of a prompt, until the first token."""
    info = slot.target.info
    if info.prompts_give_logits:
        return -(-n_tokens // info.prompt_batch)
    return 1 - (1 - n_tokens) // info.prompt_batch
