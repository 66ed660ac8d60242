"""The KV cells of a target, which its texts and what is kept of earlier ones share.

Says which texts a pass serves. Each has cells for what it is going to read and for its next tokens;
the eldest has all that it may need, since one whole context fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.slot import Slot
from edgespec.engine.text import Text
from edgespec.values import ModelInfo


def suffice(texts: Sequence[Text], info: ModelInfo) -> bool:
    """True if there are cells for the next passes of all these texts."""
    n_needed = sum(_with_tile(text.n_cells, info) for text in texts)
    return not info.n_cells or n_needed <= info.n_cells


def with_cells(active: Sequence[Text], slots: Sequence[Slot]) -> list[Text]:
    """The texts that have cells for a pass, of those that are `active`, the eldest first.

    The others rest. Where elder ones need their cells they are set back, and so the oldest kept
    texts go.
    """
    info, found = slots[0].target.info, list[Text]()
    if not info.n_cells:
        return [*active]
    left = info.n_cells
    for text in active:
        n_needed = _with_tile(text.n_cells, info)
        if n_needed <= left:
            found.append(text)
        else:
            text.slot.discard()
            n_needed = _with_tile(len(text.slot.committed), info)
            if n_needed > left:
                text.set_back()
                n_needed = 0
        left -= n_needed
    kept = sorted((slot for slot in slots if slot.is_free), key=lambda slot: slot.begun)
    for n, slot in enumerate(kept):
        if sum(_with_tile(len(other.committed), info) for other in kept[n:]) > left:
            slot.forget()
    return found


def _with_tile(n_tokens: int, info: ModelInfo) -> int:
    """Cells of a text of so many tokens, which begins with a tile if prompts are read in tiles."""
    n_cells = min(n_tokens, info.n_ctx) + info.prompt_tile
    return min(n_cells, info.n_cells) if n_tokens else 0
