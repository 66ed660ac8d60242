"""Recurrent states are kept where prompts end: further turns read only what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.engine.text import N_LEFT
from edgespec_runtimes.gguf import model as gguf_model
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.context.rows import Rows
from edgespec_runtimes.gguf.model import GgufModel
from engine_cases import GREEDY, finish
from engine_cases import AskedEngine as Engine
from paging_contract import load_either
from port_models import model_request
from zoo_files import write_model
from zoo_species import Species

OPENING = [9, 8, 7]
"""Ends each prompt; of the last two tokens the next prompt knows nothing."""
N_ANSWER = 6


@pytest.fixture(scope="module", params=["qwen35", "granitehybrid", "mamba2"])
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("turns") / "m.gguf", Species(request.param))


Open = Callable[[], GgufModel]


@pytest.fixture(params=["resident", "paged"])
def open_model(request: pytest.FixtureRequest, hybrid: Path) -> Iterator[Open]:
    opened: list[GgufModel] = []

    def open_it() -> GgufModel:
        wanted = model_request(hybrid, ctx_size=512, max_nodes=1, max_branches=1, batch_size=64)
        opened.append(load_either(runtime.prepare(wanted), request.param == "paged"))
        return opened[-1]

    yield open_it
    for model in opened:
        model.close()


@pytest.fixture
def n_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each pass from now on."""
    rows, fill = list[int](), gguf_model.fill

    def counting(batch: Any, computed: Rows, with_logits: Any) -> None:
        rows.append(len(computed))
        fill(batch, computed, with_logits)

    monkeypatch.setattr(gguf_model, "fill", counting)
    return rows


def question(turn: int) -> list[int]:
    return [(7 * turn + 3 * n) % 200 for n in range(12)]


def ask(engine: Engine, prompt: list[int]) -> list[int]:
    return list(finish(engine.generate(prompt, GREEDY, N_ANSWER)).tokens)


@pytest.mark.slow
def test_twenty_turns_read_only_what_is_new(open_model: Open, n_rows: list[int]) -> None:
    history: list[int] = []
    n_read = []
    with Engine(open_model(), None, EngineSettings()) as engine:
        for turn in range(20):
            n_rows.clear()
            prompt = [*history, *question(turn), *OPENING]
            answer = ask(engine, prompt)
            n_read.append(sum(n_rows) - (N_ANSWER - 1))
            history = [*prompt[:-2], *answer[3:]]
    n_new = len(question(0)) + len(OPENING) + 3
    assert max(n_read) <= n_new + N_LEFT
    with Engine(open_model(), None, EngineSettings()) as engine:
        assert ask(engine, prompt) == answer
