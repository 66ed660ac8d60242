"""A draft of the upper parts of its target's weights: passes read the lower parts, and no token
differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.models.embedded import embedded_pair
from edgespec.models.enlarging import enlarge
from edgespec.session import session
from edgespec.settings.config import LoadSettings, SamplingParams
from edgespec_runtimes.enlarge.gguf.trim import nest

PROMPT = "def read(path):\n    with open(path) as file:\n"
TARGET_BYTES = 48 << 20
RULES = EngineSettings(remember=False, step_aside=False, lookup=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target") / "target.gguf"
    enlarge(embedded_pair().target, path, TARGET_BYTES)
    return path


@pytest.fixture(scope="module")
def draft(target: Path) -> Path:
    out = target.with_name("draft.gguf")
    nest(target, out, range(4096))
    return out


def settings(target: Path, draft: Path | None, room_bytes: int) -> LoadSettings:
    """With room for more than the smallest budget of the pair."""
    wide = LoadSettings(model=target, draft=draft, memory_budget="1GiB", ctx_size=256)
    least = session.plan(wide).smallest_bytes
    return wide.model_copy(update={"memory_budget": least + room_bytes})


@pytest.mark.parametrize(
    "room_bytes", [0, *(pytest.param(n << 20, marks=pytest.mark.slow) for n in (6, 14))]
)
def test_the_text_is_that_without_a_draft(target: Path, draft: Path, room_bytes: int) -> None:
    nested = settings(target, draft, room_bytes)
    texts = []
    for one in (nested, nested.without_draft()):
        with session.load(one, RULES) as loaded:
            for temperature in (0.0, 0.8):
                sampling = SamplingParams(temperature=temperature, seed=7)
                result = loaded.generate(PROMPT, sampling, max_tokens=12)
                texts.append(result.tokens)
            if one.draft:
                assert loaded.plan.paged
                assert loaded.paging.merge_s > 0
    assert texts[:2] == texts[2:]
