"""Shared by tests of sessions: fake models behind a session, and passes that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MemoryPlan
from edgespec.session.session import LoadedModels, Session
from edgespec.values import GenerationResult
from fake_model import FakeModel

LOAD_S = 0.75
PLAN = MemoryPlan(
    budget_bytes=1 << 30,
    rows=(),
    segments=(),
    pinned=frozenset(),
    ring_bytes=0,
    paged=False,
    smallest_bytes=1,
)


def open_session(target: FakeModel, draft: FakeModel | None = None, **rules: Any) -> Session:
    plan = replace(PLAN, n_parallel=target.info.n_slots)
    models = LoadedModels(target, draft, plan, {"total": LOAD_S})
    return Session(models, EngineSettings(step_aside=False, **rules))


def holds_passes(target: FakeModel) -> tuple[threading.Event, threading.Event]:
    """Passes begin with the first event and go on with the second, or when they are cancelled."""
    begun, may_go_on = threading.Event(), threading.Event()

    def hook(model: FakeModel) -> None:
        begun.set()
        model.wait_until(may_go_on.is_set)

    target.hook = hook
    return begun, may_go_on


def at_once(session: Session, prompts: Sequence[str], **options: Any) -> list[GenerationResult]:
    """Results of prompts that are written, or wait in line, at the same time."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return [*pool.map(lambda prompt: session.generate(prompt, **options), prompts)]


def until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not holds():
        pause.wait(0.001)
