"""Prefixes on disk of recurrent and hybrid models, and of layers with windows: the same text."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import zoo_files
from edgespec.engine.settings import EngineSettings
from edgespec.ports import LanguageModel
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from edgespec.state.prefix_cache import PrefixCache
from edgespec_runtimes.gguf import kept_texts, runtime
from engine_cases import AskedEngine as Engine
from paging_contract import load_paged
from port_models import model_request
from zoo_species import EXPERTS_ONLY, Species

N_NEW = 6
PROMPT = [(7 * n * n + 3 * n + 1) % 200 + 3 for n in range(150)]
SLOW = pytest.mark.slow
RECURRENT = [
    pytest.param("qwen35", False, marks=SLOW),
    pytest.param("qwen35", True, marks=SLOW),
    *(
        pytest.param(name, n % 2 == 1, marks=SLOW)
        for n, name in enumerate(
            ("rwkv7", "mamba2", "granitehybrid", "qwen3next", "falcon-h1", "jamba")
        )
    ),
]
"""Architectures, and whether they are paged: what is kept of a text does not depend on it."""
WINDOWED = [
    ("gemma3", 1, False),
    pytest.param("gemma3", 2, False, marks=SLOW),
    pytest.param("gpt-oss", 1, True, marks=SLOW),
    pytest.param("gpt-oss", 2, False, marks=SLOW),
    pytest.param("cohere2", 1, True, marks=SLOW),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_texts, "MAX_BLOCK_TOKENS", 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


def opened(folder: Path, name: str, is_paged: bool = False, n_slots: int = 1) -> LanguageModel:
    path = folder / f"{name}.gguf"
    if not path.exists():
        zoo_files.write_model(path, Species(name, name in EXPERTS_ONLY), {"context_length": 4096})
    request = model_request(
        path, ctx_size=2048, batch_size=128, n_slots=n_slots, stores_prefixes=True
    )
    prepared = runtime.prepare(request)
    return load_paged(prepared) if is_paged else prepared.load(None)


def written(
    target: LanguageModel, folder: Path | None, *prompts: list[int]
) -> tuple[list[list[int]], list[int]]:
    """The texts after the prompts, each in an engine of its own, and how many tokens were known."""
    texts, known = [], []
    for n, prompt in enumerate(prompts):
        target.truncate(0)
        store = None if folder is None else PrefixCache(folder, 1 << 30, target, None)
        place = store.place if store else None
        with Engine(target, None, EngineSettings(remember=False), prefixes=place) as engine:
            sampling = SamplingParams(temperature=0.9 * (n % 2), seed=3)
            request = engine.admit(TextRequest(tuple(prompt), sampling, N_NEW))
            texts.append([event.token for event in engine.ask(request)])
            known.append(request.result().reused_tokens)
    return texts, known


@pytest.mark.parametrize(("name", "is_paged"), RECURRENT)
def test_a_recurrent_text_goes_on_where_an_earlier_prompt_ended(
    name: str, is_paged: bool, folder: Path, tmp_path: Path
) -> None:
    others = ([*PROMPT[:100], n, *PROMPT[:30]] for n in (1, 2))
    prompts = (PROMPT, [*PROMPT, *PROMPT[:50]], PROMPT[:100], *others)
    with closing(opened(folder, name, is_paged)) as target:
        cold, none = written(target, None, *prompts)
        written(target, tmp_path, PROMPT)
        warm, known = written(target, tmp_path, *prompts)
    assert warm == cold
    assert none == [0] * 5
    assert known[0] == known[1] >= len(PROMPT) - 10
    assert known[2] == 0
    assert known[4] >= known[3] >= 64  # it is kept where texts diverge


@pytest.mark.parametrize(("name", "n_slots", "is_paged"), WINDOWED)
def test_a_text_with_windows_goes_on_after_any_block(
    name: str, n_slots: int, is_paged: bool, folder: Path, tmp_path: Path
) -> None:
    long = [*PROMPT, *PROMPT]
    apart = [*long[:100], 5, 6, 7, *long[:30]]
    prompts = (long, [*long[:-20], 9, 9], apart)
    with closing(opened(folder, name, is_paged, n_slots)) as target:
        cold, _ = written(target, None, *prompts)
        written(target, tmp_path, long)
        warm, known = written(target, tmp_path, *prompts)
    assert warm == cold
    assert known[0] > len(long) - 80
    assert known[1] > len(long) - 100
    assert known[2] > 90
