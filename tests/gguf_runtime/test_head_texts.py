"""Texts with a head, EAGLE-3 or DFlash, are the target's own: greedy and sampled, resident and
paged, turn after turn, several at once, and from a saved state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pytest

import edgespec
from edgespec.engine.settings import EngineSettings
from edgespec.errors import PairError
from edgespec.models.describe import describe
from edgespec.rules.sampling import SamplingParams
from edgespec.session.opening import open_models
from edgespec.settings.config import LoadSettings
from gguf_files import (
    borrowing,
    predictable_pair,
    repeating_pair,
    tiny_dflash,
    tiny_eagle3,
    tiny_llama,
    without_texts,
)
from head_cases import LINE, PROMPT
from session_cases import at_once

N_TOKENS = 40
ALONE = EngineSettings(lookup=False)
"""The head guesses, and nothing else."""

PAIRS = {"EAGLE-3": predictable_pair, "DFlash": repeating_pair}
"""Targets and heads that know them."""


@dataclass(frozen=True)
class Files:
    target: Path
    head: Path

    def settings(self, n_parallel: int = 1) -> LoadSettings:
        return LoadSettings(
            model=self.target, draft=self.head, memory_budget="4GiB", n_parallel=n_parallel
        )


@pytest.fixture(
    scope="module",
    params=[
        *product(("EAGLE-3", "DFlash"), ("knows the target", "borrows", "knows nothing")),
        ("DFlash2", "knows nothing"),
        ("DSpark", "knows nothing"),
    ],
    ids=" ".join,
)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("heads")
    kind, what = request.param
    target, head = predictable_pair("Q8_0") if kind == "EAGLE-3" else repeating_pair()
    if what == "knows nothing":
        target = tiny_llama(layers=4, tied=False)
        head = {
            "EAGLE-3": tiny_eagle3,
            "DFlash": tiny_dflash,
            "DFlash2": partial(tiny_dflash, n_candidates=4),
            "DSpark": partial(tiny_dflash, begins=True),
        }[kind]()
    elif kind == "EAGLE-3":
        head.tensors = predictable_pair("F32")[1].tensors
    if what == "borrows":
        head = borrowing(head, target, "token_embd.weight", "output.weight")
    return Files(target.write(folder / "target.gguf"), head.write(folder / "head.gguf"))


@pytest.fixture(scope="module", params=PAIRS)
def good(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A head that knows its target."""
    folder = tmp_path_factory.mktemp("good")
    target, head = PAIRS[request.param]()
    return Files(target.write(folder / "target.gguf"), head.write(folder / "head.gguf"))


def test_a_head_that_knows_its_target_saves_passes(good: Files) -> None:
    with edgespec.load(good.settings(), LINE) as session:
        result = session.generate(PROMPT, SamplingParams(temperature=0), N_TOKENS)
    assert result.speculation.tokens_per_pass > 3
    assert [source.source for source in result.speculation.sources] == ["draft"]


@pytest.mark.slow
def test_turns_and_texts_at_once_are_the_target_s_own(good: Files) -> None:
    prompts = [PROMPT, (*PROMPT[:4], 17, 3, 8), (*PROMPT[:4], 17, 3, 1, 2, 3), (4,), PROMPT[:2]]
    sampling = SamplingParams(temperature=0)
    with edgespec.load(LoadSettings(model=good.target, memory_budget="4GiB")) as session:
        alone = [session.generate(prompt, sampling, 12).tokens for prompt in prompts]
    for n_parallel in (1, 2):
        with edgespec.load(good.settings(n_parallel), LINE) as session:
            assert session.n_parallel == 1
            turns = [session.generate(prompt, sampling, 12) for prompt in prompts]
            assert [turn.tokens for turn in turns] == alone
            assert all(turn.speculation.accepted for turn in turns)
            many = at_once(session, prompts, sampling=sampling, max_tokens=12)
            assert [result.tokens for result in many] == alone


def test_what_a_head_costs_is_in_the_plan(good: Files) -> None:
    rows = {(row.owner, row.what): row.nbytes for row in edgespec.plan(good.settings()).rows}
    assert rows["target", "features (3 layers)"] > 0
    of_text, of_block = (
        rows.get(("draft", f"features {what}")) for what in ("of the text", "being read")
    )
    assert (of_text is None) != (of_block is None)
    assert of_text is None or of_text >= 4 * 64 * 128
    assert of_block is None or of_block >= 4 * 8 * 3 * 64
    alone = edgespec.plan(LoadSettings(model=good.target, memory_budget="4GiB"))
    assert not any("features" in row.what for row in alone.rows)


@pytest.mark.parametrize("kind", PAIRS)
def test_matrices_of_the_target_are_in_the_plan(kind: str, tmp_path: Path) -> None:
    target, head = PAIRS[kind]()
    matrices = {"output.weight": "copy of the target's output"}
    if kind == "EAGLE-3":  # both are one matrix of the other target
        matrices["token_embd.weight"] = "rows of the target's embeddings"
    for name, what in matrices.items():
        names = (name,) if kind == "EAGLE-3" else ("token_embd.weight", name)
        path = borrowing(head, target, *names).write(tmp_path / f"{name}.gguf")
        settings = Files(target.write(tmp_path / "target.gguf"), path).settings()
        rows = {(row.owner, row.what): row.nbytes for row in edgespec.plan(settings).rows}
        assert rows["draft", what] >= 297 * 64 * 4
        assert not any(rows.get(("draft", other)) for other in set(matrices.values()) - {what})


@pytest.mark.costly
@pytest.mark.parametrize("kind", PAIRS)
def test_a_head_that_borrows_saves_passes(kind: str, tmp_path: Path) -> None:
    target, head = PAIRS[kind]()
    borrows = borrowing(head, target, "token_embd.weight", "output.weight")
    files = Files(target.write(tmp_path / "target.gguf"), borrows.write(tmp_path / "head.gguf"))
    with edgespec.load(files.settings(), LINE) as session:
        result = session.generate(PROMPT, SamplingParams(temperature=0), N_TOKENS)
    assert result.speculation.tokens_per_pass > 3


def test_a_head_without_a_vocabulary_guesses_for_the_one_it_was_made_for(tmp_path: Path) -> None:
    target, head = predictable_pair()
    model = target.write(tmp_path / "target.gguf")
    made_for = describe(model).fingerprint
    path = without_texts(head, made_for).write(tmp_path / "head.gguf")
    assert describe(path).fingerprint == made_for
    with edgespec.load(Files(model, path).settings(), LINE) as session:
        result = session.generate(PROMPT, SamplingParams(temperature=0), N_TOKENS)
    assert result.speculation.tokens_per_pass > 3
    other = without_texts(head, made_for[::-1]).write(tmp_path / "other.gguf")
    with pytest.raises(PairError):
        edgespec.plan(Files(model, other).settings())


def test_a_head_that_was_not_asked_for_gives_way_to_several_texts(good: Files) -> None:
    settings = good.settings(n_parallel=4).model_copy(update={"optional_draft": True})
    plan = edgespec.plan(settings)
    assert plan.n_parallel == 4
    assert not plan.has_draft
    assert any("follows one text, and `n_parallel` asks for 4" in note for note in plan.notes)


def test_a_head_reads_prompts_in_small_batches(good: Files) -> None:
    """Its graph has logits of every row of a batch."""
    with open_models(good.settings(), ALONE) as models:
        assert models.draft.info.prompt_batch <= 32
