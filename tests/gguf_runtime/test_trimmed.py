"""Trimmed copies: drafts without a tokenizer, a head for some tokens, embeddings by rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import ModelError, PairError
from edgespec.models.describe import describe
from edgespec.models.embedded import embedded_pair
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.enlarge.gguf.trim import write_trimmed
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.layout import MADE_FOR
from edgespec_runtimes.gguf.own_draft.trimmed import TABLE_ROWS, TABLE_TYPE, TOKEN_IDS
from gguf_files import ARRAY, I32, STRING, U32, tiny_llama
from port_calls import logits_of_a_tree
from port_models import model_request

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
        tokens, n_vocab = models.target.vocabulary.encode(PROMPT), models.target.info.n_vocab
        ids = models.draft.token_ids
        return logits_of_a_tree(models.draft, tokens), None if ids is None else ids[ids < n_vocab]


@pytest.mark.slow
def test_its_logits_are_those_of_the_whole_model(trimmed: Path) -> None:
    (whole, every), (some, rated) = first_logits(TARGET), first_logits(trimmed)
    assert every is None
    assert rated.tolist() == RATED
    assert (some == whole[:, rated]).all()


@pytest.mark.costly
@pytest.mark.parametrize("what", ["logits (33 nodes)", "weights"])
def test_it_takes_less_memory_than_the_whole_model(trimmed: Path, what: str) -> None:
    def planned(draft: Path) -> int:
        plan = session.plan(LoadSettings(model=TARGET, draft=draft, memory_budget=BUDGET))
        return sum(row.nbytes for row in plan.rows if (row.owner, row.what) == ("draft", what))

    assert 0 < planned(trimmed) < planned(TARGET)


def test_another_vocabulary_is_refused(trimmed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    ours = describe(TARGET).fingerprint.encode()
    other.write_bytes(trimmed.read_bytes().replace(ours, ours[::-1]))
    with pytest.raises(PairError):
        session.plan(LoadSettings(model=TARGET, draft=other, memory_budget=BUDGET))


@pytest.mark.parametrize("change", [("embeddings.type", U32, 24), ("vocab_size", U32, 4_000_000)])
def test_a_number_that_is_none_of_a_drafts_is_refused(
    tmp_path: Path, change: tuple[str, int, int]
) -> None:
    """Tables of I8 have no conversion, and llama.cpp makes a table of all tokens at once."""
    model, (name, kind, value) = tiny_llama(layers=1), change
    model.metadata = {k: v for k, v in model.metadata.items() if not k.startswith("tokenizer.")}
    model.metadata |= {
        "tokenizer.ggml.model": (STRING, "none"),
        MADE_FOR: (STRING, "x"),
        TOKEN_IDS: (ARRAY, I32, [*range(297)]),
        TABLE_TYPE: (U32, 8),
        TABLE_ROWS: (U32, 297),
        "llama.vocab_size": (U32, 297),
    }
    key = TABLE_TYPE if name == "embeddings.type" else f"llama.{name}"
    model.metadata[key] = (kind, value)
    path = tmp_path / "draft.gguf"
    path.write_bytes(model.content() + model.tensor("token_embd.weight").data + bytes(1 << 16))
    with pytest.raises(ModelError):
        runtime.prepare(model_request(path, owner="draft"))
