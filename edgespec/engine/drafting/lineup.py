"""Creates the drafters of a text: the draft model, drafters without a model, and custom ones.

Knows all kinds of drafters.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.lookup import LookupDrafter
from edgespec.engine.drafting.mixer import Mixer
from edgespec.engine.drafting.model_drafter import ModelDrafter
from edgespec.engine.drafting.recycling import RecyclingDrafter
from edgespec.engine.drafting.text_index import History
from edgespec.engine.settings import EngineSettings
from edgespec.extras import added
from edgespec.ports import LanguageModel
from edgespec.settings.rule_names import Keeps

DRAFTERS = "edgespec.drafters"
"""Entry point group of other packages' drafters: functions that make a `Drafter` for one slot from
the target's `ModelInfo` and `Vocabulary`. They guess where lookup does."""


def line_up(
    target: LanguageModel,
    draft: LanguageModel | None,
    drafters: Sequence[Drafter],
    settings: EngineSettings,
    mixer: Mixer | None = None,
    slot: int = 0,
    history: History | None = None,
) -> TreeGrower | None:
    """A grower with the drafters of one slot, the draft model first; None without any. `history`
    has recent texts of all slots."""
    info = target.info
    if not info.verifies_guesses:
        return None
    eog_tokens, pacer = target.vocabulary.eog_tokens, settings.pacer_for(info)
    guessing = list(drafters)
    rule = settings.acceptance_rule
    growth = rule.growth
    if growth is not None:
        if draft is None or slot:  # all draws of one text are verified, and no other text's
            return None
        from edgespec.engine.drafting.drawing import DrawingDrafter, DrawnGrower

        drawing = DrawingDrafter(draft, growth, info.n_vocab, eog_tokens, info.n_ctx)
        return DrawnGrower(drawing, pacer)
    if draft is not None if settings.lookup is None else settings.lookup:
        guessing += [LookupDrafter(eog_tokens, history), RecyclingDrafter(eog_tokens)]
        guessing += [new(info, target.vocabulary) for new in added(DRAFTERS).values()]
    if draft is not None:
        terms = settings.n_candidates, info.n_vocab, eog_tokens
        if draft.info.block_guesses:
            from edgespec.engine.drafting.head_drafter import BlockDrafter

            guessing.insert(0, BlockDrafter(draft, *terms))
        elif draft.info.reads_features:
            from edgespec.engine.drafting.head_drafter import HeadDrafter

            guessing.insert(0, HeadDrafter(draft, *terms))
        else:
            guessing.insert(0, ModelDrafter(draft, *terms, max_tokens=info.n_ctx, slot=slot))
    if not guessing:
        return None
    return TreeGrower(guessing, pacer, mixer, foresees=rule.keeps is Keeps.DRAWS)
