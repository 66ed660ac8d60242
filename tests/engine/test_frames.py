"""Depth and width of a round: a stranger holds the way from the engine's loop to the model in the
head, and the files and classes that a round goes through."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import edgespec
import edgespec_runtimes
from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.engine.text import Text
from edgespec.models.embedded import embedded_pair
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.gguf import model

MAX_FRAMES = 7
"""Most frames from the loop to llama.cpp's pass."""
MAX_CLASSES, MAX_FILES = 22, 26
"""Most in the median round with one text and a draft: 20 and 24 where nothing else runs."""
OURS = (edgespec.__path__[0], edgespec_runtimes.__path__[0])


class Profile:
    """A profiler that keeps what each step of the loop calls."""

    def __init__(self) -> None:
        self.rounds: list[Profile] = []
        self.files: set[str] = set()
        self.classes: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            self.files.add(Path(code.co_filename).name)
            name, *rest = code.co_qualname.split(".")
            if rest and "<" not in code.co_qualname:
                self.classes.add(name)

    @contextmanager
    def one_round(self) -> Iterator[None]:
        """Within, calls are those of another round."""
        inside = Profile()
        sys.setprofile(inside)
        yield
        sys.setprofile(None)
        self.rounds.append(inside)


def depth_below(frame: FrameType | None, name: str) -> int:
    """Number of the product's frames above the one of the function `name`."""
    n_frames = 0
    while frame is not None and frame.f_code.co_qualname != name:
        n_frames += frame.f_code.co_filename.startswith(OURS)
        frame = frame.f_back
    return n_frames


def test_a_round_is_shallow_and_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole drafted text of the embedded pair, streamed, is profiled round by round."""
    profile, depths, step, fill = Profile(), list[int](), Engine.step, model.fill

    def spied(engine: Engine, texts: list[Text]) -> None:
        with profile.one_round():
            step(engine, texts)

    monkeypatch.setattr(Engine, "step", spied)
    embedded = embedded_pair()
    load = LoadSettings(model=embedded.target, draft=embedded.draft, ctx_size=256)
    with session.load(load, EngineSettings(step_aside=False, remember=False)) as running:

        def measured(batch: Any, rows: Any, with_logits: Any) -> None:
            depths.append(depth_below(sys._getframe(1), "Scheduler.run"))  # calls llama_decode
            fill(batch, rows, with_logits)

        monkeypatch.setattr(model, "fill", measured)
        running.generate("def read(path):\n", max_tokens=60)
    rounds = sorted(profile.rounds, key=lambda each: len(each.classes) + len(each.files))
    one = rounds[len(rounds) // 2]
    assert len(one.classes) <= MAX_CLASSES, " ".join(sorted(one.classes))
    assert len(one.files) <= MAX_FILES, sorted(one.files)
    assert depths and max(depths) <= MAX_FRAMES, depths
