"""The same request has the same logits and the same text, whatever the session did before it, with
a draft or without, at any size of its trees, and from a prompt cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from test_gguf_types import quantised

from edgespec.engine.settings import EngineSettings
from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel, PassPart, Progress
from edgespec.rules.sampling import SamplingParams
from edgespec_runtimes.gguf import runtime
from engine_cases import AskedEngine as Engine
from engine_cases import finish, forget
from fake_model import FakeModel, fixed_text
from paging_contract import load_either
from port_contract import TEXT
from port_models import model_request

SLOW = pytest.mark.slow
KINDS = ["Q8_0", *(pytest.param(kind, marks=SLOW) for kind in ("Q4_K_M", "Q4_0", "F16"))]
SIZES = {17: (5, 63, 64, 65, 130, 300), 97: (65, 300)}
"""Lengths of prompts by the size of trees: all of them with one, and with the other one prompt that
just fills a tile and one of several batches."""
CASES = [
    pytest.param(size, n_tokens, marks=() if (size, n_tokens) == (17, 65) else SLOW)
    for size, lengths in SIZES.items()
    for n_tokens in lengths
]
by_case = pytest.mark.parametrize(("target", "n_tokens"), CASES, indirect=["target"])
N_NEW = 8
WARM = SamplingParams(temperature=0.9, seed=3)


def opened(path: Path, max_nodes: int, is_paged: bool = True) -> LanguageModel:
    request = model_request(path, ctx_size=512, max_nodes=max_nodes, batch_size=128)
    return load_either(runtime.prepare(request), is_paged)


class Watched:
    """A target that keeps the logits of the last prompt token, the first that a text depends on."""

    def __init__(self, target: LanguageModel) -> None:
        self._target = target
        self.seen: dict[int, np.ndarray] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def evaluate(
        self, parts: Sequence[PassPart], progress: Progress | None = None
    ) -> list[np.ndarray]:
        [(_, tree, nodes, *_)] = parts
        [logits] = self._target.evaluate(parts, progress)
        for node, row in zip(nodes, logits, strict=True):
            position = self._target.committed_of(0) + int(tree.depth[node])
            self.seen.setdefault(position, row.copy())
        return [logits]


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "Q8_0":
        return embedded_pair().target
    return quantised(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, path: Path) -> Iterator[LanguageModel]:
    with closing(opened(path, request.param)) as model:
        yield model


Fresh = Callable[[Sequence[int]], tuple[dict[int, np.ndarray], tuple[int, ...]]]


@pytest.fixture(scope="module")
def known(path: Path) -> dict[tuple[int, ...], tuple[dict[int, np.ndarray], tuple[int, ...]]]:
    """Results of fresh runs by prompt, whatever the size of the trees."""
    return {}


@pytest.fixture
def fresh(target: LanguageModel, known: dict) -> Fresh:
    """Logits and text of a prompt that nothing came before, computed once."""

    def result(prompt: Sequence[int]) -> tuple[dict[int, np.ndarray], tuple[int, ...]]:
        key = tuple(prompt)
        if key not in known:
            known[key] = fresh_run(target, prompt)
        return known[key]

    return result


def run(engine: Engine, prompt: Sequence[int], sampling: SamplingParams = WARM) -> tuple[int, ...]:
    return finish(engine.generate(prompt, sampling, max_tokens=N_NEW)).tokens


HISTORIES: dict[str, Callable[[list[int]], list[list[int]]]] = {
    "shorter": lambda prompt: [prompt[: len(prompt) // 2]],
    "nearly all": lambda prompt: [prompt[:-3]],
    "longer": lambda prompt: [[*prompt, *prompt[:70]]],
    "another end": lambda prompt: [[*prompt[:-2], 7, 7, 7]],
    "itself": lambda prompt: [prompt],
    "turns": lambda prompt: [prompt[:n] for n in range(3, len(prompt), 41)],
}
"""Prompts that are asked before one."""


def tokens_of(model: LanguageModel, n_tokens: int) -> list[int]:
    return model.vocabulary.encode(40 * TEXT)[:n_tokens]


@pytest.mark.slow
@by_case
def test_after_any_history(target: LanguageModel, n_tokens: int, fresh: Fresh) -> None:
    prompt = tokens_of(target, n_tokens)
    seen, expected = fresh(prompt)
    for name, history in HISTORIES.items():
        watched = Watched(target)
        with Engine(watched) as engine:  # type: ignore[arg-type]
            for earlier in history(prompt):
                run(engine, earlier)
            watched.seen.clear()
            assert run(engine, prompt) == expected, name
            forget(engine)
        last = len(prompt) - 1
        assert np.array_equal(watched.seen[last], seen[last]), name


def fresh_run(
    target: LanguageModel, prompt: Sequence[int]
) -> tuple[dict[int, np.ndarray], tuple[int, ...]]:
    watched = Watched(target)
    with Engine(watched) as engine:  # type: ignore[arg-type]
        expected = run(engine, prompt)
        forget(engine)
    return watched.seen, expected


@pytest.mark.costly
@by_case
def test_the_next_turn_is_the_conversation_read_at_once(
    target: LanguageModel, n_tokens: int, fresh: Fresh
) -> None:
    """The generated text is part of the next prompt."""
    prompt = tokens_of(target, n_tokens)
    with Engine(target) as engine:
        answer = run(engine, prompt)
        conversation = [*prompt, *answer, *tokens_of(target, 20)]
        continued = run(engine, conversation)
        forget(engine)
    assert continued == fresh(conversation)[1]


@pytest.mark.costly
@by_case
def test_with_a_draft_and_without_one(target: LanguageModel, n_tokens: int, fresh: Fresh) -> None:
    """In first and in second turns."""
    prompt = tokens_of(target, n_tokens)
    first = fresh(prompt)[1]
    conversation = [*prompt, *first, *tokens_of(target, 20)]
    second = fresh(conversation)[1]
    n_vocab = target.info.n_vocab
    guesses = [token + (n % 3 == 2) for n, token in enumerate(first)]
    draft = FakeModel(fixed_text(guesses, n_vocab, len(prompt)), n_vocab)
    settings = EngineSettings(fallback="full", step_aside=False)
    with Engine(target, draft, settings) as engine:
        assert run(engine, prompt) == first
        assert run(engine, conversation) == second
        forget(engine)
