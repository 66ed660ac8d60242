"""What guesses would have brought of texts that are known: grown again, without the target.

Knows drafts, lookups and texts; nothing of processes, plans or settings.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from edgespec.concurrency.worker import Worker
from edgespec.engine.loop import Engine
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.models import pair_fit
from edgespec.models.compare import PortReader
from edgespec.ports import LanguageModel
from edgespec.tuning.measurements import Text, TreeYield, Trust
from edgespec.values import GenerationResult, RoundCost

GREEDY = SamplingParams()
LOOKUP_SIZES = (1, 4, 16, 48)
TRUST_EDGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def replay_trees(
    draft: LanguageModel, texts: Sequence[Text], sizes: Sequence[int], seconds: float
) -> list[TreeYield]:
    """Full trees of each size, grown at texts that need not be written again. Fewer texts are
    replayed where the smaller sizes took their share of the time."""
    known = [GenerationResult("", text.prompt_tokens, text.tokens, "length") for text in texts]
    deadline = time.monotonic() + seconds
    found = []
    for n_left, size in zip(range(len(sizes), 0, -1), sizes, strict=True):
        rounds, accepted, spent_s = 0, 0, 0.0
        share_s = (deadline - time.monotonic()) / n_left
        for text in known:
            costs = replay_costs(draft, text, size)
            rounds += len(costs)
            accepted += sum(cost.accepted for cost in costs)
            spent_s += sum(cost.wall_s for cost in costs)
            if spent_s > share_s:
                break
        if rounds:
            found.append(TreeYield(size, 1 + accepted / rounds, spent_s / rounds))
    return found


def replay_costs(draft: LanguageModel, text: GenerationResult, size: int) -> tuple[RoundCost, ...]:
    """The rounds of one text, whose passes take no time."""
    draft.truncate(0)
    return _replayed_rounds(pair_fit.KnownText(draft), draft, text, pair_fit.full_trees(size))


def replay_lookups(
    target: LanguageModel, texts: Sequence[Text], sizes: Sequence[int]
) -> list[TreeYield]:
    """As `replay_trees`, without a draft. What the target nearly said is not known any more, so
    real rounds bring more."""
    if not target.info.verifies_guesses:
        return []
    found = []
    for size in sizes:
        rules = replace(pair_fit.full_trees(size), lookup=True)
        rounds: list[RoundCost] = []
        for text in texts:
            known = pair_fit.KnownText(target)
            known.info = replace(target.info, max_nodes=1 + size)
            result = GenerationResult("", text.prompt_tokens, text.tokens, "length")
            rounds += _replayed_rounds(known, None, result, rules)
        if rounds:
            tokens = 1 + sum(cost.accepted for cost in rounds) / len(rounds)
            found.append(TreeYield(size, tokens, sum(c.wall_s for c in rounds) / len(rounds)))
    return found


def _replayed_rounds(
    known: pair_fit.KnownText,
    draft: LanguageModel | None,
    text: GenerationResult,
    rules: EngineSettings,
) -> tuple[RoundCost, ...]:
    known.tokens = (*text.prompt_tokens, *text.tokens)
    with Engine(known, draft, rules) as engine:
        request = engine.request(text.prompt_tokens, GREEDY, len(text.tokens))
        with closing(engine.run(request)) as events:
            for _ in events:
                pass
    return request.result().speculation.round_costs


def trust_in(draft: LanguageModel, texts: Sequence[Text]) -> list[Trust]:
    """How often the draft's first choice is the target's token, by the probability it gives it."""
    n_guesses, n_right = [0] * len(TRUST_EDGES), [0] * len(TRUST_EDGES)
    with Worker() as worker:
        for text in texts:
            tokens = [*text.prompt_tokens, *text.tokens][: draft.info.n_ctx]
            start = len(text.prompt_tokens) - 1
            logits = PortReader(draft, worker)(tokens[:-1], start)
            best = logits.argmax(axis=1)
            shifted = logits - logits.max(axis=1, keepdims=True)
            sure = 1 / np.exp(shifted).sum(axis=1)
            for guess, confidence, token in zip(best, sure, tokens[start + 1 :], strict=True):
                place = min(int(confidence * len(TRUST_EDGES)), len(TRUST_EDGES) - 1)
                n_guesses[place] += 1
                n_right[place] += int(guess == token)
    return [
        Trust(edge, n, right)
        for edge, n, right in zip(TRUST_EDGES, n_guesses, n_right, strict=True)
        if n
    ]
