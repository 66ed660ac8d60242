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
MAX_TYPES, MAX_TYPES_OF_A_MODULE = 9, 6
"""Most types of the engine that these modules name: together, and each."""
MAX_TYPES_AT_WORK = {"none": 12, "model": 26, "all": 32}
"""Most types of the engine whose code runs in one round, by its drafters."""
ENGINE = ("edgespec.engine.", "edgespec.rules.")
"""Modules whose types count: the engine's and its rules'."""
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


class TypesAtWork:
    """A profiler that keeps the engine's classes whose code runs from one pass to the next one."""

    def __init__(self) -> None:
        self.met: set[str] = set()
        self.rounds: list[set[str]] = []

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call":
            return
        names = frame.f_code.co_qualname.split(".")
        home = sys.modules.get(frame.f_globals.get("__name__", ""))
        found = getattr(home, names[0], None)
        if frame.f_code.co_filename == "<string>":  # a method that a dataclass or a tuple was given
            made = frame.f_locals.get("self", frame.f_locals.get("_cls"))
            found = made if isinstance(made, type) else type(made)
        if isinstance(found, type) and found.__module__.startswith(ENGINE):
            self.met.add(found.__name__)

    def end_round(self, model: FakeModel) -> None:
        self.rounds.append(self.met)
        self.met = set()


@pytest.mark.parametrize("drafters", MAX_TYPES_AT_WORK)
def test_few_types_are_at_work_in_a_round(drafters: str) -> None:
    target, at_work = counting(), TypesAtWork()
    draft = None if drafters == "none" else counting()
    threading.setprofile(at_work)
    try:
        with open_session(target, draft, lookup=drafters == "all", draft_max=4) as session:
            generation = session.stream(PROMPT, max_tokens=60)
            next(generation)
            target.hook = at_work.end_round
            sys.setprofile(at_work)
            while len(at_work.rounds) < 9:
                next(generation)
            sys.setprofile(None)
            target.hook = None
            generation.close()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    met = set.union(*at_work.rounds[1:])
    assert len(met) <= MAX_TYPES_AT_WORK[drafters], sorted(met)


def test_a_round_is_made_of_few_types() -> None:
    engine = Path(OURS) / "engine"
    files = [*engine.rglob("*.py"), *(Path(OURS) / "rules").rglob("*.py")]
    parsed = {path: ast.parse(path.read_text()) for path in files}
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
