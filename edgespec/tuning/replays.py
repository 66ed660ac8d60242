"""What guesses would have brought of texts that are known: grown again, without the target.

Knows drafts, lookups and texts; nothing of processes, plans or settings.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count

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
        rounds: list[RoundCost] = []
        share_s = (deadline - time.monotonic()) / n_left
        for text in known:
            rounds += replay_costs(draft, text, size)
            if sum(cost.wall_s for cost in rounds) > share_s:
                break
        found += _yield_of(size, rounds)
    return found


def replay_costs(draft: LanguageModel, text: GenerationResult, size: int) -> tuple[RoundCost, ...]:
    """The rounds of one text, whose passes take no time."""
    draft.truncate(0)
    return _replayed_rounds(pair_fit.KnownText(draft), draft, text, pair_fit.full_trees(size))


def replay_lookups(
    target: LanguageModel, texts: Sequence[Text], sizes: Sequence[int]
) -> list[TreeYield]:
    """As `replay_trees`, without a draft. What the target nearly said is not known any more, so
    real rounds bring more. Tokens are numbered anew: the target is in memory beside this, whose
    budget has no room for logits of its whole vocabulary."""
    if not target.info.verifies_guesses:
        return []
    known = pair_fit.KnownText(target)
    numbers = (n for n in count() if n not in target.vocabulary.eog_tokens)
    number_of = {
        t: next(numbers) for t in {t for x in texts for t in (*x.prompt_tokens, *x.tokens)}
    }
    n_vocab = 1 + max(number_of.values(), default=0)
    found = []
    for size in sizes:
        known.info = replace(target.info, n_vocab=n_vocab, max_nodes=1 + size)
        rules = replace(pair_fit.full_trees(size), lookup=True)
        rounds: list[RoundCost] = []
        for text in texts:
            prompt, tokens = (
                tuple(number_of[token] for token in part)
                for part in (text.prompt_tokens, text.tokens)
            )
            known.truncate(0)
            result = GenerationResult("", prompt, tokens, "length")
            rounds += _replayed_rounds(known, None, result, rules)
        found += _yield_of(size, rounds)
    return found


def _yield_of(size: int, rounds: Sequence[RoundCost]) -> list[TreeYield]:
    """None without a round."""
    if not rounds:
        return []
    tokens_per_pass = 1 + sum(cost.accepted for cost in rounds) / len(rounds)
    return [TreeYield(size, tokens_per_pass, sum(cost.wall_s for cost in rounds) / len(rounds))]


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
