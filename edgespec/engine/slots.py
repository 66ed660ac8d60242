"""The texts that the models hold at a time, and which of them serves a request.

Chooses the one in which most of the prompt is already computed. Knows tokens, but no passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.lineup import line_up
from edgespec.engine.drafting.trust import Mixer
from edgespec.engine.pair import Pair
from edgespec.engine.passes import Passes
from edgespec.engine.prompt import reusable
from edgespec.engine.request import ActiveRequest
from edgespec.engine.settings import EngineSettings
from edgespec.ports import LanguageModel
from edgespec.ports.texts import HoldsTexts, texts_of


class Slots:
    """The texts of a target and of its drafters."""

    def __init__(
        self,
        passes: Passes,
        draft: LanguageModel | None,
        drafters: Sequence[Drafter],
        settings: EngineSettings,
        max_nodes: int,
    ) -> None:
        """One for each text that the target holds; `drafters` guess in the first. At most
        `max_nodes` run at a time, and one if all drawn guesses must be verified."""
        self._model = passes.target
        self._draft = draft
        targets = texts_of(passes.target)
        drafts = texts_of(draft)[: len(targets)] if draft is not None else []
        mixer = Mixer()
        self.pairs: list[Pair] = []
        for text, (its_target, its_draft) in enumerate(zip_longest(targets, drafts)):
            others = () if text else drafters
            grower = line_up(its_target, its_draft, others, settings, mixer)
            self.pairs.append(Pair(its_target, grower, passes, text))
        self.usable = self.pairs[: 1 if settings.draws_guesses else max_nodes]
        """Those in which requests run."""
        self._n_begun = 0

    @property
    def n_free(self) -> int:
        """Number of texts without a request."""
        return sum(pair.running is None for pair in self.usable)

    def has_one_for(self, request: ActiveRequest) -> bool:
        """True if the request can begin now; one with a prompt cache needs text 0."""
        free = [pair for pair in self.usable if pair.running is None]
        return any(request.terms.keeper is None or pair.text == 0 for pair in free)

    def take(self, request: ActiveRequest) -> Pair:
        """Choose the text in which `request` runs from now on."""
        pair = self._choose(request)
        self._n_begun += 1
        pair.running, pair.last_use = request, self._n_begun
        if pair.grower is not None:
            pair.grower.begin_text(request.sampler)
        return pair

    def give_back(self, request: ActiveRequest) -> None:
        """Free the text in which `request` runs, if it has one."""
        for pair in self.usable:
            if pair.running is request:
                pair.running = None

    def _choose(self, request: ActiveRequest) -> Pair:
        """An unused text that the prompt continues, or else the least recently used one, which then
        shares the longest prefix of the prompt that any text has."""
        if len(self.usable) == 1 or request.terms.keeper is not None:
            return self.usable[0]
        prompt = request.prompt[:-1]
        best = max(self.usable, key=lambda pair: reusable(pair, prompt))
        n_shared = reusable(best, prompt)
        free = (pair for pair in self.usable if pair.running is None)
        oldest = min(free, key=lambda pair: pair.last_use)
        if best is oldest or (best.running is None and n_shared == len(best.committed) > 0):
            return best
        if n_shared > reusable(oldest, prompt):
            self._share(best, oldest, n_shared)
        return oldest

    def _share(self, source: Pair, target: Pair, n_tokens: int) -> None:
        """Share the KV of the first tokens of `source` with `target`."""
        model, draft = self._model, self._draft
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
