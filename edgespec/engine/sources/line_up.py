"""The sources of an engine: the draft model, those without a model, and other packages'."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.lookup import LookupSource
from edgespec.engine.sources.model_source import ModelSource
from edgespec.engine.sources.recycling import RecyclingSource
from edgespec.engine.sources.source import Source
from edgespec.errors import UsageError
from edgespec.extras import added
from edgespec.ports import LanguageModel
from edgespec.rules.acceptance_rules import Growth

SOURCES = "edgespec.drafters"
"""Entry point group of other packages' sources: functions that make a `Source` from the target's
`ModelInfo` and `Vocabulary`. They guess where lookup does."""


def line_up(
    target: LanguageModel,
    draft: LanguageModel | None,
    others: Sequence[Source],
    settings: EngineSettings,
    growth: Growth | None = None,
) -> list[Source]:
    """The sources of guesses for a target, the draft model first; it alone if guesses are drawn.

    Raises UsageError if there is no whole draft model to draw from.
    """
    info, eog_tokens = target.info, target.vocabulary.eog_tokens
    if not info.verifies_guesses:
        return []
    if growth is not None:
        if draft is None or draft.info.reads_features or others:
            raise UsageError("this acceptance rule draws all guesses from a whole draft: give one")
        from edgespec.engine.sources.drawing import DrawingSource

        return [DrawingSource(draft, growth, info.n_vocab, eog_tokens, info.n_ctx)]
    found = list[Source]()
    if draft is not None:
        terms = settings.n_candidates, info.n_vocab, eog_tokens
        if draft.info.reads_features:
            from edgespec.engine.sources.head_source import BlockSource, HeadSource

            found.append((BlockSource if draft.info.block_guesses else HeadSource)(draft, *terms))
        else:
            found.append(ModelSource(draft, *terms, max_tokens=info.n_ctx))
    found += others
    if draft is not None if settings.lookup is None else settings.lookup:
        found += [LookupSource(eog_tokens), RecyclingSource(eog_tokens)]
        found += [make(info, target.vocabulary) for make in added(SOURCES).values()]
    return found
