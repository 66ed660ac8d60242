"""The engine: a target and its sources of guesses, and the thread that writes texts with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from edgespec.concurrency.owning import Users, close_all
from edgespec.concurrency.worker import Worker
from edgespec.engine.admission import admit, check_sources, notes_on, obstacle
from edgespec.engine.generation import Generation
from edgespec.engine.kept_ledger import KeptLedger
from edgespec.engine.loop import Loop
from edgespec.engine.settings import EngineSettings
from edgespec.engine.slot import Slot
from edgespec.engine.sources.line_up import line_up
from edgespec.engine.sources.mixer import Mixer
from edgespec.engine.sources.source import Source
from edgespec.engine.state_store import StateStore
from edgespec.engine.text import Text
from edgespec.errors import SessionClosed
from edgespec.pool import Pool
from edgespec.ports import LanguageModel, Progress
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from edgespec.state.prefix_cache import SlotPrefixes
from edgespec.tracing.spans import OFF, Trace


def nothing() -> None:
    """Release of an engine whose models are borrowed."""


class Engine(Loop):
    """Generates text with a target and an optional draft, in a thread of its own.

    As many generations run at a time as the target holds texts; others wait in line. Learnt state
    and the KV of common prefixes are reused by later generations. `close` ends the thread.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None = None,
        settings: EngineSettings | None = None,
        clock: Callable[[], float] = time.perf_counter,
        trace: Trace = OFF,
        sources: Sequence[Source] = (),
        state_store: StateStore | None = None,
        release: Callable[[], None] = nothing,
        n_grammars: int | None = None,
        name: str = "the engine",
        prefixes: Callable[[int], SlotPrefixes] | None = None,
    ) -> None:
        """`sources` guess in addition to the draft model.

        The models are borrowed, unless `release` frees them at the end. At most `n_grammars`
        requests with grammars run at a time. `name` is the subject of error messages. `prefixes`
        says where the texts of a slot are stored.
        """
        settings = settings or EngineSettings()
        check_sources(settings, draft, sources)
        reason = obstacle(target, draft)
        if not reason and draft is not None and draft.info.reads_features:
            target.give_features(draft.info.feature_layers, draft.take_features)
        self.target, self.trace, self.settings = target, trace, settings
        self.acceptance, self.pacer = settings.acceptance_rule, settings.new_pacer(target.info)
        self.limits = settings.limits_for(target.info)
        self.sources = line_up(target, None if reason else draft, sources, settings)
        self.mixer, self.pool, self.worker = Mixer(), Pool(), Worker()
        mixer = self.mixer if self.sources else None
        self.ledger = KeptLedger(target, draft, mixer, settings, state_store)
        n_slots = min(settings.n_texts(target.info), self.limits.max_nodes)
        places = (prefixes(n) if prefixes is not None else None for n in range(n_slots))
        slots = [Slot(target, n, self.sources, place) for n, place in enumerate(places)]
        guesses = bool(self.sources)
        self._notes = notes_on(reason, self.acceptance, guesses, target.info.n_slots)
        super().__init__(
            slots,
            clock,
            Users(name, SessionClosed),
            n_slots if n_grammars is None else n_grammars,
            partial(close_all, self.worker.close, release),
        )

    def admit(self, terms: TextRequest) -> Text:
        """Prepare a request for `run`. Raises UsageError if the target cannot serve it."""
        rule = self.acceptance if self.sources else None
        with self._users.use():
            text = admit(self.target, terms, rule, self.settings.n_keep)
        for note in self._notes:
            text.tally.note(note)
        return text

    def run(self, text: Text) -> Generation:
        """The tokens of a request. After an error, Ctrl-C or closing it, the models hold no
        provisional KV, and the engine can be used again."""
        return Generation(self, text)

    def generate(
        self,
        prompt_tokens: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Generation:
        """Admit and `run` a request."""
        terms = TextRequest(tuple(prompt_tokens), sampling, max_tokens, stop, progress=progress)
        return self.run(self.admit(terms))

    @property
    def committed(self) -> Sequence[int]:
        """Committed tokens of slot 0."""
        return tuple(self.slots[0].committed)
