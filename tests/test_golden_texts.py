"""Golden texts: what a seed, a model and settings give, to the letter, and must go on giving.

A change of them is a change for users, who rely on a seed. The expected values were written by the
code itself; a text depends on neither the processor nor the draft, so they hold everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.engine.settings import EngineSettings
from edgespec.models.embedded import embedded_pair
from edgespec.session.session import Session
from edgespec.settings.config import LoadSettings, SamplingParams
from edgespec.values import GenerationResult
from engine_cases import PROMPT, generate
from fake_model import FakeModel, blend, random_language

PAIR = embedded_pair()
N_TOKENS = 12
PROMPTS = ("def add(a, b):\n", "Once there was a wolf", "import os\n\nclass Reader:")
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "warm": {"temperature": 0.8, "seed": 7},
    "filtered": {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 1},
    "penalised": {"temperature": 0.5, "repeat_penalty": 1.3, "seed": 2},
    "biased": {"logit_bias": {259: -100.0, 331: -100.0, 852: -100.0}},
}
GOLDEN: dict[str, str] = {
    "greedy 0": "[259, 362, 2445, 269] f5c6ca34e113",
    "greedy 1": "[331, 300, 377, 295] 0c8b93fab3a3",
    "greedy 2": "[852, 291, 484, 2962] 6ae2c46a6b82",
    "warm 0": "[262, 362, 1748, 1405] f80f67ea8341",
    "warm 1": "[364, 275, 324, 368] 1941984df7b6",
    "warm 2": "[852, 718, 484, 1124] cbad69d4387b",
    "filtered 0": "[259, 362, 2833, 269] 8f8cb36e8fa5",
    "filtered 1": "[65, 1896, 1032, 513] e4d1b431cbdb",
    "filtered 2": "[1124, 495, 1555, 259] 5edd1517ff73",
    "penalised 0": "[259, 362, 660, 269] 3c3e128f7916",
    "penalised 1": "[65, 693, 265, 529] d2b44745e8ca",
    "penalised 2": "[325, 1858, 14, 1798] c0f5dadd17c5",
    "biased 0": "[262, 362, 2445, 269] 3e4f804762e5",
    "biased 1": "[383, 377, 295, 199] 2c801d4c76b3",
    "biased 2": "[221, 311, 479, 321] 6a49b9075b84",
}
DRAWN: dict[str, str] = {
    "exact-replay 0.0": "[8, 9, 2, 4] 11fc6de77a08",
    "exact-replay 1.0": "[7, 8, 3, 3] 7f6fd961b53f",
    "rejection 0.0": "[8, 9, 2, 4] 11fc6de77a08",
    "rejection 1.0": "[8, 9, 6, 6] b252d449bddf",
    "specinfer 0.0": "[8, 9, 2, 4] 11fc6de77a08",
    "specinfer 1.0": "[8, 9, 2, 4] f6779319e524",
    "sequoia 0.0": "[8, 9, 2, 4] 11fc6de77a08",
    "sequoia 1.0": "[2, 5, 6, 9] 3457dd3ace17",
    "typical 0.0": "[8, 9, 2, 4] 11fc6de77a08",
    "typical 1.0": "[7, 8, 1, 1] eacf70ff6634",
}
AFTER_STATE = "[313, 747, 1631, 12] 68e719d8b68a"


def digest(tokens: tuple[int, ...]) -> str:
    """The first tokens and a hash of all."""
    return f"{list(tokens[:4])} {sha256(repr(tokens).encode()).hexdigest()[:12]}"


def loaded(n_parallel: int, has_draft: bool, **rules: Any) -> Session:
    settings = LoadSettings(
        model=PAIR.target,
        draft=PAIR.draft if has_draft else None,
        n_parallel=n_parallel,
        ctx_size=256,
        threads=2,
    )
    return edgespec.load(settings, EngineSettings(remember=False, step_aside=False, **rules))


CASES = [(name, n) for name in SAMPLINGS for n in range(len(PROMPTS))]


def written(session: Session, case: tuple[str, int]) -> tuple[str, str]:
    name, n = case
    result = session.generate(PROMPTS[n], SamplingParams(**SAMPLINGS[name]), N_TOKENS)
    return f"{name} {n}", digest(result.tokens)


MORE = [pytest.param(plan, marks=pytest.mark.slow) for plan in ((1, False), (3, True))]


@pytest.fixture(scope="module", params=[(1, True), *MORE], ids=str)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with loaded(*request.param) as opened:
        yield opened


def test_each_text_is_the_golden_one(session: Session) -> None:
    """One after the other, or as many at once as there are places."""
    with ThreadPoolExecutor(session.n_parallel) as pool:
        assert dict(pool.map(lambda case: written(session, case), CASES)) == GOLDEN


def test_a_state_file_goes_on_with_the_golden_text(tmp_path: Path) -> None:
    path, warm = tmp_path / "state", SamplingParams(temperature=0.8, seed=5)
    with loaded(1, has_draft=True) as first:
        tokens = [*first.encode(PROMPTS[0] * 4), *first.generate(PROMPTS[0] * 4, warm, 8).tokens]
        first.save_state(path)
    with loaded(1, has_draft=True) as second:
        second.load_state(path)
        result = second.generate([*tokens, *second.encode("\n")], warm, N_TOKENS)
    assert result.reused_tokens > 0
    assert digest(result.tokens) == AFTER_STATE


def fake(rule: str, temperature: float) -> GenerationResult:
    language = random_language(3, 12)
    draft = blend(language, random_language(4, 12), 0.4)
    sampling = SamplingParams(temperature=temperature, seed=9)
    return generate(
        FakeModel(language, 12),
        FakeModel(draft, 12),
        prompt=PROMPT,
        sampling=sampling,
        max_tokens=40,
        acceptance=rule,
        fallback="fixed",
        draft_max=4,
    )


@pytest.mark.parametrize("rule", ["exact-replay", "rejection", "specinfer", "sequoia", "typical"])
def test_fake_models_give_the_golden_text_under_every_rule(rule: str) -> None:
    """A rule that draws its guesses gives a text of its own, whose tree decides it, too."""
    texts = {f"{rule} {t}": digest(fake(rule, t).tokens) for t in (0.0, 1.0)}
    assert texts == {key: text for key, text in DRAWN.items() if key.split()[0] == rule}
