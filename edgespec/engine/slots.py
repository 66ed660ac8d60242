"""The slots of a target and its drafters, and which of them serves a request.

Chooses the slot in which most of the prompt is already computed. Knows tokens, but no passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.lineup import line_up
from edgespec.engine.drafting.mixer import Mixer
from edgespec.engine.drafting.text_index import History
from edgespec.engine.prompt import reusable
from edgespec.engine.request import ActiveRequest
from edgespec.engine.settings import EngineSettings
from edgespec.engine.slot import Slot
from edgespec.ports import LanguageModel
from edgespec.ports.prefixes import PrefixPlace
from edgespec.tracing.spans import Trace


class Slots:
    """All slots of a target and of its drafters."""

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        drafters: Sequence[Drafter],
        settings: EngineSettings,
        max_nodes: int,
        clock: Callable[[], float],
        trace: Trace,
        prefixes: Callable[[int], PrefixPlace] | None = None,
    ) -> None:
        """All slots of the target; `drafters` guess in the first. At most
        `max_nodes` are used, and one if all drawn guesses must be verified. Texts are stored where
        `prefixes` says for each slot."""
        self._model = target
        self._draft = draft
        mixer, history = Mixer(), History()
        self.all: list[Slot] = []
        for number in range(target.info.n_slots):
            its_draft = draft if draft is not None and number < draft.info.n_slots else None
            others = () if number else drafters
            grower = line_up(target, its_draft, others, settings, mixer, number, history)
            place = prefixes(number) if prefixes is not None else None
            self.all.append(Slot(target, number, grower, clock, trace, place))
        self.usable = self.all[: 1 if settings.draws_guesses else max_nodes]
        """Those in which requests run."""
        self._n_begun = 0

    @property
    def n_free(self) -> int:
        """Number of slots without a request."""
        return sum(slot.is_free for slot in self.usable)

    def has_one_for(self, request: ActiveRequest) -> bool:
        """True if the request can begin now; one with a prompt cache needs slot 0."""
        free = [slot for slot in self.usable if slot.is_free]
        return any(request.terms.keeper is None or slot.number == 0 for slot in free)

    def take(self, request: ActiveRequest) -> Slot:
        """Choose the slot in which `request` runs from now on."""
        slot = self._choose(request)
        self._n_begun += 1
        slot.last_use = self._n_begun
        slot.begin_text(request)
        return slot

    def store_block(self) -> bool:
        """Store a block of a text that is not stored yet; False if there is none."""
        return any(slot.store_block() for slot in self.usable)

    def give_back(self, request: ActiveRequest) -> None:
        """Free the slot in which `request` runs, if it has one."""
        for slot in self.usable:
            if not slot.is_free and slot.request is request:
                slot.end_text()

    def _choose(self, request: ActiveRequest) -> Slot:
        """A free slot whose text the prompt continues, or else the least recently used one, which
        then shares the longest prefix of the prompt that any slot has."""
        if len(self.usable) == 1 or request.terms.keeper is not None:
            return self.usable[0]
        prompt, owner = request.prompt[:-1], request.terms.owner
        best = max(self.usable, key=lambda slot: reusable(slot, prompt, owner))
        n_shared = reusable(best, prompt, owner)
        free = (slot for slot in self.usable if slot.is_free)
        oldest = min(free, key=lambda slot: slot.last_use)
        if best is oldest or (best.is_free and n_shared == len(best.committed) > 0):
            return best
        if n_shared > reusable(oldest, prompt, owner):
            self._share(best, oldest, n_shared)
        return oldest

    def _share(self, source: Slot, target: Slot, n_tokens: int) -> None:
        """Share the KV of the first tokens of `source` with `target`."""
        model, draft = self._model, self._draft
        while target.store_block():
            pass
        target.rewind(0)
        target.owner = source.owner
        model.share(source.number, target.number, n_tokens)
        n_tokens = model.committed_of(target.number)
        target.committed = source.committed[:n_tokens]
        target.n_tiled = min(source.n_tiled, n_tokens)
        target.n_drafted = min(source.n_drafted, n_tokens)
        if draft is None or draft.info.n_slots < model.info.n_slots:
            target.n_drafted = 0
        elif target.grower is not None:
            target.n_drafted = min(source.n_leading, n_tokens)
            draft.share(source.number, target.number, target.n_drafted)
            target.n_drafted = draft.committed_of(target.number)
