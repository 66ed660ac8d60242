"""Trimmed copies: drafts without a tokenizer, a head for some tokens, embeddings by rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.errors import ModelError, PairError
from edgespec.models.describe import describe
from edgespec.models.embedded import embedded_pair
from edgespec.ports import token_ids_of
from edgespec.session import session
from edgespec.settings.config import LoadSettings, SamplingParams
from edgespec_runtimes.enlarge.gguf.trim import check_trimmable, write_trimmed
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.trimmed_header import TABLE_ROWS, trimmed_shape
from port_calls import logits_of_a_tree

TARGET = embedded_pair().target
RATED = [*range(3000), *range(3500, 4000)]
PROMPT = "def read(path):\n    with open(path) as file:\n"
BUDGET = "1GiB"


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trimmed copy of the embedded target in its own quantisation."""
    out = tmp_path_factory.mktemp("trimmed") / "trimmed.gguf"
    write_trimmed(TARGET, out, RATED)
    return out


def first_logits(draft: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Logits after the nodes of a small tree, and the tokens that they rate."""
    settings = LoadSettings(model=TARGET, draft=draft, memory_budget=BUDGET)
    with session.open_models(settings) as models:
        assert models.draft is not None
        tokens, n_vocab = models.target.vocabulary.encode(PROMPT), models.target.info.n_vocab
        return logits_of_a_tree(models.draft, tokens), token_ids_of(models.draft, n_vocab)


@pytest.mark.slow
def test_its_logits_are_those_of_the_whole_model(trimmed: Path) -> None:
    (whole, every), (some, rated) = first_logits(TARGET), first_logits(trimmed)
    assert every is None
    assert rated is not None
    assert rated.tolist() == RATED
    assert (some == whole[:, rated]).all()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("acceptance", ["exact-replay", "rejection"])
def test_the_text_is_the_targets(trimmed: Path, temperature: float, acceptance: str) -> None:
    rules = EngineSettings(remember=False, step_aside=False, lookup=False, acceptance=acceptance)
    texts = []
    for draft in (TARGET, trimmed):
        settings = LoadSettings(model=TARGET, draft=draft, memory_budget=BUDGET)
        with session.load(settings, rules) as loaded:
            sampling = SamplingParams(temperature=temperature, seed=5)
            result = loaded.generate(PROMPT, sampling, max_tokens=24)
            assert result.speculation.accepted > 0
            texts.append(result.tokens)
    if acceptance == "exact-replay" or not temperature:
        assert texts[0] == texts[1]


@pytest.mark.costly
@pytest.mark.parametrize("what", ["logits (33 nodes)", "weights"])
def test_it_takes_less_memory_than_the_whole_model(trimmed: Path, what: str) -> None:
    def planned(draft: Path) -> int:
        plan = session.plan(LoadSettings(model=TARGET, draft=draft, memory_budget=BUDGET))
        return sum(row.nbytes for row in plan.rows if (row.owner, row.what) == ("draft", what))

    assert 0 < planned(trimmed) < planned(TARGET)


def test_several_texts_share_it(trimmed: Path) -> None:
    settings = LoadSettings(model=TARGET, draft=trimmed, memory_budget=BUDGET, n_parallel=2)
    prompts = [PROMPT, "import os\n"]
    with session.load(settings, EngineSettings(remember=False)) as loaded:
        together = [one.tokens for one in loaded.generate_many(prompts, max_tokens=8)]
        alone = [loaded.generate(prompt, max_tokens=8).tokens for prompt in prompts]
    assert together == alone


def test_its_vocabulary_is_the_targets(trimmed: Path) -> None:
    assert describe(trimmed).fingerprint == describe(TARGET).fingerprint
    assert describe(trimmed).info.n_vocab == 4096


def test_another_vocabulary_is_refused(trimmed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    ours = describe(TARGET).fingerprint.encode()
    other.write_bytes(trimmed.read_bytes().replace(ours, ours[::-1]))
    with pytest.raises(PairError, match="another vocabulary"):
        session.plan(LoadSettings(model=TARGET, draft=other, memory_budget=BUDGET))


def test_it_is_no_target(trimmed: Path) -> None:
    with pytest.raises(ModelError, match="name the target with `model`"):
        session.plan(LoadSettings(model=trimmed, memory_budget=BUDGET))


def test_no_copy_of_a_copy_is_made(trimmed: Path) -> None:
    with pytest.raises(ModelError, match="no draft can be made"):
        check_trimmable(trimmed)


def test_embeddings_that_are_cut_short_are_refused(trimmed: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(trimmed.read_bytes()[:-4096])
    with pytest.raises(ModelError, match="cut short"):
        session.plan(LoadSettings(model=TARGET, draft=short, memory_budget=BUDGET))


def test_tokens_beyond_the_embeddings_are_refused(trimmed: Path, tmp_path: Path) -> None:
    entry = read_header(trimmed).entries[TABLE_ROWS]
    damaged = tmp_path / "damaged.gguf"
    content = bytearray(trimmed.read_bytes())
    content[entry.end - 4 : entry.end] = (1000).to_bytes(4, "little")
    damaged.write_bytes(content)
    with pytest.raises(ModelError, match="ascending"):
        trimmed_shape(read_header(damaged))
