"""Who guesses for a target: the draft model, what guesses without one, and drafters of a caller's.

Knows every kind of drafter by name; which of them is right, is learnt elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.lookup import LookupDrafter
from edgespec.engine.drafting.model import ModelDrafter
from edgespec.engine.drafting.recycling import RecyclingDrafter
from edgespec.engine.settings import EngineSettings
from edgespec.ports import LanguageModel


def line_up(
    target: LanguageModel,
    draft: LanguageModel | None,
    drafters: Sequence[Drafter],
    settings: EngineSettings,
) -> TreeGrower | None:
    """Whatever guesses for `target`, the draft model first; None for nobody."""
    info = target.info
    if not info.verifies_guesses:
        return None
    eog_tokens = target.vocabulary.eog_tokens
    guessing = list(drafters)
    if draft is not None if settings.lookup is None else settings.lookup:
        guessing += [LookupDrafter(eog_tokens), RecyclingDrafter(eog_tokens)]
    if draft is not None:
        model = ModelDrafter(
            draft, settings.n_candidates, settings.draft_temperature, info.n_vocab, eog_tokens
        )
        guessing.insert(0, model)
    return TreeGrower(guessing) if guessing else None
