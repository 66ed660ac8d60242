"""Depth and width of the engine: a stranger holds the way from `next()` to the model in the head,
and the types that a round is made of."""

from __future__ import annotations

import ast
import sys
import threading
from pathlib import Path
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
ROUND = ("loop.py", "forest.py", "round.py")
"""Modules that one reads to follow a round."""
MAX_TYPES, MAX_TYPES_OF_A_MODULE = 12, 9
"""Most types of the engine that these modules name: together, and each."""
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

    def __init__(self, within: str = "") -> None:
        """Keep stacks with this class alone."""
        self.within = within
        self.engine: list[str] = []
        self.waiting: list[str] = []

    def __call__(self, model: FakeModel) -> None:
        stack = ours(sys._getframe())
        if any(name.startswith(self.within) for name in stack):
            self.engine = max(self.engine, stack, key=len)
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
    assert stacks.waiting[-1] == "Generation.__next__"
    assert len(stacks.engine) + len(stacks.waiting) <= MAX_FRAMES, (stacks.engine, stacks.waiting)


def test_a_draft_step_is_not_deep() -> None:
    draft, stacks = counting(), Stacks(within="Forest")
    with open_session(counting(), draft, lookup=False) as session:
        generation = session.stream(PROMPT)
        next(generation)
        draft.hook = stacks
        while not stacks.engine:
            next(generation)
        generation.close()
    step = stacks.engine[: next(n for n, name in enumerate(stacks.engine) if "Loop" in name)]
    assert len(step) <= MAX_STEP_FRAMES, step


def test_a_round_is_made_of_few_types() -> None:
    engine = Path(OURS) / "engine"
    parsed = {path: ast.parse(path.read_text()) for path in engine.rglob("*.py")}
    ours = {
        node.name
        for tree in parsed.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    named = [
        ours.intersection(
            getattr(node, "id", getattr(node, "name", ""))
            for node in ast.walk(parsed[engine / name])
        )
        for name in ROUND
    ]
    assert max(map(len, named)) <= MAX_TYPES_OF_A_MODULE, named
    assert len(set.union(*named)) <= MAX_TYPES, sorted(set.union(*named))
