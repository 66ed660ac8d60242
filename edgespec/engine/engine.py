"""The engine: a target and its draft, and the thread that writes texts with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from edgespec.concurrency.owning import Users
from edgespec.engine.admission import admit, check_drafters, notes_on, obstacle
from edgespec.engine.drafting.drafter import Drafter
from edgespec.engine.drafting.lineup import line_up
from edgespec.engine.drafting.mixer import Mixer
from edgespec.engine.drafting.state_store import StateStore
from edgespec.engine.drafting.text_index import History
from edgespec.engine.generation import Generation
from edgespec.engine.loop import Loop
from edgespec.engine.planning.stored_planner import StoredPlanner
from edgespec.engine.request import ActiveRequest
from edgespec.engine.scheduler import Scheduler
from edgespec.engine.settings import EngineSettings
from edgespec.engine.slot import Slot
from edgespec.errors import SessionClosed
from edgespec.ports import LanguageModel, Progress
from edgespec.ports.prefixes import PrefixPlace
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from edgespec.tracing.spans import OFF, Trace

T = TypeVar("T")


def nothing() -> None:
    """Release of an engine whose models are borrowed."""


class Engine(Scheduler):
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
        drafters: Sequence[Drafter] = (),
        state_store: StateStore | None = None,
        release: Callable[[], None] = nothing,
        n_grammars: int | None = None,
        name: str = "the engine",
        prefixes: Callable[[int], PrefixPlace] | None = None,
    ) -> None:
        """`drafters` guess in addition to the draft model, in the first text only.

        The models are borrowed, unless `release` frees them at the end. At most `n_grammars`
        requests with grammars run at a time. `name` is the subject of error messages. `prefixes`
        says where the texts of a slot are stored.
        """
        settings = settings or EngineSettings()
        check_drafters(settings, draft, drafters)
        reason = obstacle(target, draft)
        self._target = target
        if not reason and draft is not None and draft.info.reads_features:
            target.give_features(draft.info.feature_layers, draft.take_features)
        self._settings, self._acceptance = settings, settings.acceptance_rule
        limits = settings.limits_for(target.info)
        draft_in_use = None if reason else draft
        n_slots = min(settings.n_texts(target.info), limits.max_nodes)
        mixer, history, growers = Mixer(), History(), []
        for n in range(n_slots):
            its_draft = draft_in_use if draft_in_use and n < draft_in_use.info.n_slots else None
            others = () if n else drafters
            growers.append(line_up(target, its_draft, others, settings, mixer, n, history))
        self.planner = StoredPlanner(target, draft, growers[0], settings, state_store)
        slots = [
            Slot(target, n, grower, limits, self._acceptance, self.planner, clock, trace, prefixes)
            for n, grower in enumerate(growers)
        ]
        has_grower = growers[0] is not None
        self._notes = notes_on(reason, self._acceptance, has_grower, target.info.n_slots)
        loop = Loop(target, self.planner, clock, trace)
        n_grammars = n_slots if n_grammars is None else n_grammars
        super().__init__(slots, loop, Users(name, SessionClosed), n_grammars, release)

    def admit(self, terms: TextRequest) -> ActiveRequest:
        """Prepare a request for `run`. Raises UsageError if the target cannot serve it."""
        rule = self._acceptance if self.first.grower is not None else None
        with self._users.use():
            request = admit(self._target, terms, rule, self._settings.n_keep)
        for note in self._notes:
            request.tally.note(note)
        return request

    def run(self, request: ActiveRequest) -> Generation:
        """The tokens of a request. After an error, Ctrl-C or closing it, the models hold no
        provisional KV, and the engine can be used again."""
        return Generation(self, request)

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
    def first(self) -> Slot:
        return self._slots[0]

    @property
    def committed(self) -> Sequence[int]:
        """Committed tokens of slot 0."""
        return tuple(self.first.committed)
