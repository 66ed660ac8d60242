"""Memory holds the rows of a looked-up table that passes name, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import WeightReadError
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import TensorEntry, read_header
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.weights.row_tables import RowTable, bytes_for
from one_tree import ROOT, OneTree
from paging_contract import load_paged
from port_calls import evaluate, prefill
from reference import LlamaCpp
from sentences import refuses
from zoo_files import write_model
from zoo_species import Species

TOKENS = [5, 91, 5, 300, 17, 44, 208, 91]
PER_LAYER = "per_layer_token_embd.weight"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 4, which looks up a vector for every layer beside the token's embedding."""
    return write_model(tmp_path_factory.mktemp("tables") / "m.gguf", Species("gemma4"))


@pytest.fixture
def model(path: Path) -> Iterator[GgufModel]:
    with closing(load_paged(runtime.prepare(request(path)), 0.0)) as model:
        yield model


def request(path: Path) -> ModelRequest:
    return ModelRequest(path, "target", 64, 9, 9, 1, batch_size=32)


def tables(model: GgufModel) -> dict[str, RowTable]:
    return {weight.entry.name: rows for weight, rows in model._weights._tables.values()}


def test_every_table_is_looked_up_by_rows(model: GgufModel) -> None:
    """per_layer_token_embd, gigabytes in real files, was kept in memory whole."""
    assert PER_LAYER in tables(model)
    prefill(model, TOKENS[:4])
    assert all(rows._present == set(TOKENS[:4]) for rows in tables(model).values())


def test_rows_that_were_looked_up_give_the_text_of_the_whole_table(
    model: GgufModel, path: Path
) -> None:
    with LlamaCpp(path, n_ctx=64) as whole:
        whole.start()
        for token in TOKENS:
            expected = whole.decode([token])
    prefill(model, TOKENS[:-1])
    logits = evaluate(model, OneTree(TOKENS[-1]), [ROOT])[0]
    assert np.array_equal(logits, expected)


def test_the_plan_holds_a_row_of_every_table_for_each_token_of_a_batch(path: Path) -> None:
    entries = {tensor.name: tensor for tensor in read_header(path).tensors}
    names = ("token_embd.weight", PER_LAYER)
    prepared = runtime.prepare(request(path))
    rows = {row.what: row.nbytes for row in prepared.needs().paged_rows()}
    prepared.close()
    assert rows["embedding rows"] == sum(bytes_for(entries[name], 32) for name in names)


def test_a_table_that_was_cut_short_is_named(tmp_path: Path, path: Path) -> None:
    table = entry(path)
    short = tmp_path / "short.gguf"
    short.write_bytes(path.read_bytes()[: table.offset + 100])
    with refuses(WeightReadError), closing(RowTable(table, short, n_rows_at_once=4)) as rows:
        rows.fetch([7])


def test_a_row_that_cannot_be_read_ends_the_pass_and_not_the_process(
    model: GgufModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: RowTable, rows: object) -> None:
        raise WeightReadError("the file was cut short")

    monkeypatch.setattr(RowTable, "fetch", gone)
    with pytest.raises(WeightReadError):
        evaluate(model, OneTree(5), [ROOT])
    monkeypatch.undo()
    prefill(model, TOKENS)


def entry(path: Path) -> TensorEntry:
    return read_header(path).tensors_by_name[PER_LAYER]
