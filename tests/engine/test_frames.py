"""Depth of the engine: a stranger holds the way from `next()` to the model in the head."""

from __future__ import annotations

import sys
import threading
from types import FrameType

import pytest

import edgespec
from engine_cases import PROMPT, counting
from fake_model import FakeModel
from session_cases import open_session

MAX_FRAMES = 10
"""Most frames from `next()` to the model's pass, those of the waiting thread included."""
MAX_STEP_FRAMES = 5
"""Most frames from the trees of a pass to the draft model's step."""
OURS = edgespec.__path__[0]


def ours(frame: FrameType | None) -> list[str]:
    """Names of the product's functions on a stack, innermost first."""
    names = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names


class Stacks:
    """A hook that keeps the stacks of the engine's thread and of the one that waits."""

    def __init__(self) -> None:
        self.engine: list[str] = []
        self.waiting: list[str] = []

    def __call__(self, model: FakeModel) -> None:
        self.engine = max(self.engine, ours(sys._getframe()), key=len)
        main = threading.main_thread().ident
        assert main is not None
        self.waiting = ours(sys._current_frames()[main])


@pytest.mark.parametrize("has_draft", [False, True])
def test_few_frames_lie_between_next_and_the_pass(has_draft: bool) -> None:
    target, stacks = counting(), Stacks()
    with open_session(target, counting() if has_draft else None) as session:
        generation = session.stream(PROMPT)
        next(generation)
        target.hook = stacks
        while not stacks.engine:
            next(generation)
        generation.close()
    assert stacks.waiting[-1] == "Stream.__next__"
    assert len(stacks.engine) + len(stacks.waiting) <= MAX_FRAMES, (stacks.engine, stacks.waiting)


def test_a_draft_step_is_not_deep() -> None:
    draft, stacks = counting(), Stacks()
    with open_session(counting(), draft) as session:
        generation = session.stream(PROMPT)
        next(generation)
        draft.hook = stacks
        while not any("Forest" in name for name in stacks.engine):
            next(generation)
        generation.close()
    step = stacks.engine[: next(n for n, name in enumerate(stacks.engine) if "Loop" in name)]
    assert len(step) <= MAX_STEP_FRAMES, step
