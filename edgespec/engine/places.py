"""Chooses the text in which a request runs, so that most of its prompt is already computed.

Knows the tokens of texts, but no passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.pair import Pair
from edgespec.engine.prompt import reusable
from edgespec.engine.request import ActiveRequest
from edgespec.ports import LanguageModel
from edgespec.ports.texts import HoldsTexts


def choose_place(
    pairs: Sequence[Pair], request: ActiveRequest, draft: LanguageModel | None
) -> Pair:
    """The unused text in which the request will run.

    This is a text that the prompt continues, or else the least recently used one, which then
    shares the longest prefix of the prompt that any text has.
    """
    if len(pairs) == 1 or request.terms.keeper is not None:
        return pairs[0]
    prompt = request.prompt[:-1]
    best = max(pairs, key=lambda pair: reusable(pair, prompt))
    n_shared = reusable(best, prompt)
    oldest = min((pair for pair in pairs if pair.running is None), key=lambda pair: pair.last_use)
    if best is oldest or (best.running is None and n_shared == len(best.committed) > 0):
        return best
    if n_shared > reusable(oldest, prompt):
        _share(best, oldest, n_shared, draft)
    return oldest


def _share(source: Pair, target: Pair, n_tokens: int, draft: LanguageModel | None) -> None:
    """Share the KV of the first tokens of `source` with `target`."""
    model = source.passes.target
    assert isinstance(model, HoldsTexts)
    target.rewind(0)
    model.share(source.text, target.text, n_tokens)
    n_tokens = model.committed_of(target.text)
    target.committed = source.committed[:n_tokens]
    target.n_tiled = min(source.n_tiled, n_tokens)
    target.n_drafted = min(source.n_drafted, n_tokens)
    if not isinstance(draft, HoldsTexts) or draft.info.n_texts < model.info.n_texts:
        target.n_drafted = 0
    elif target.grower is not None:
        target.n_drafted = min(source.grower.n_leading, n_tokens) if source.grower else 0
        draft.share(source.text, target.text, target.n_drafted)
        target.n_drafted = draft.committed_of(target.text)
