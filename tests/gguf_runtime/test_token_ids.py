"""Drafts are loaded without their tokenizer: the target's turns their ids into texts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import edgespec
from edgespec.errors import UsageError
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf.entry import GgufRuntime
from edgespec_runtimes.gguf.options import GgufOptions
from gguf_files import tiny_llama
from port_models import model_request
from sentences import refuses

N_VOCAB = 30_000
BYTES_PER_TOKEN = 60
"""Most memory of a token without text; with text, map and merges it would be about 250."""


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(n_vocab=N_VOCAB).write(tmp_path_factory.mktemp("ids") / "draft.gguf")


def request(path: Path) -> ModelRequest:
    return model_request(
        path, owner="draft", ctx_size=64, max_nodes=3, max_branches=2, options=GgufOptions()
    )


def test_a_draft_takes_no_memory_for_texts_of_tokens(draft: Path) -> None:
    with closing(GgufRuntime().prepare(request(draft))) as prepared:
        rows = prepared.needs().fixed
    [ids] = [row.nbytes for row in rows if row.what == "token ids"]
    assert 0 < ids <= BYTES_PER_TOKEN * N_VOCAB


def test_a_draft_has_the_tokens_of_its_file_and_no_texts(draft: Path) -> None:
    prepared = GgufRuntime().prepare(request(draft))
    with closing(prepared.load(None)) as model:
        assert model.info.n_vocab == model.vocabulary.n_vocab == N_VOCAB
        for ask in (lambda: model.vocabulary.encode("a"), lambda: model.vocabulary.piece(5)):
            with refuses(UsageError):
                ask()


@pytest.mark.slow
def test_a_draft_guesses_the_tokens_of_the_target_without_its_tokenizer(
    draft: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target.gguf"
    target.symlink_to(draft)
    load = edgespec.LoadSettings(model=target, draft=draft, ctx_size=64, threads=1)
    rules = edgespec.EngineSettings(
        remember=False, fallback="fixed", draft_max=2, step_aside=False, lookup=False
    )
    with edgespec.load(load, rules) as session:
        speculation = session.generate([5, 9, 2], max_tokens=13).speculation
    assert speculation.accepted == speculation.verified > 0, "four rounds of three"
