"""A model with recurrent state writes llama.cpp's text with a draft of its own kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.session import session
from edgespec.settings.config import LoadSettings
from head_cases import LINE
from reference import LlamaCpp
from zoo_files import write_model
from zoo_species import Species


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Mamba (Gu and Dao, arXiv 2312.00752)."""
    return write_model(tmp_path_factory.mktemp("mamba") / "mamba.gguf", Species("mamba"))


def test_it_guesses_for_itself(mamba: Path) -> None:
    prompt = [100, 101, 102, 103]
    with LlamaCpp(mamba, 256) as llama_cpp:
        expected = llama_cpp.greedy(prompt, 12).tokens
    with session.load(LoadSettings(model=mamba, draft=mamba), LINE) as running:
        result = running.generate(prompt, max_tokens=12)
        assert list(result.tokens) == expected
        assert result.speculation.accepted and not result.notes
        assert running.generate(prompt, max_tokens=12).tokens == result.tokens


def test_a_generation_that_was_left_early_leaves_it_usable(mamba: Path) -> None:
    prompt = [100, 101, 102, 103]
    with session.load(LoadSettings(model=mamba)) as running:
        whole = running.generate(prompt, max_tokens=8).tokens
        events = running.stream(prompt, max_tokens=8)
        next(events)
        events.close()
        assert running.generate(prompt, max_tokens=8).tokens == whole
