"""Blocks of GGUF models' texts leave the process and come back."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

import zoo_files
from edgespec.errors import StateError
from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import kept_texts, runtime
from edgespec_runtimes.gguf.options import GgufOptions
from paging_contract import load_either, load_paged, one_by_one
from state_contract import MORE, StateContract, blocks_of, read_blocks
from zoo_species import Species

TARGET = embedded_pair().target


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_texts, "MAX_BLOCK_TOKENS", 8)


def request(path: Path, max_nodes: int = 9, **options: object) -> ModelRequest:
    usual: dict[str, object] = {"ctx_size": 128, "batch_size": 64, "max_branches": 4}
    usual["stores_prefixes"] = True
    return ModelRequest(path, "target", max_nodes=max_nodes, n_threads=1, **usual | options)  # type: ignore[arg-type]


def resident(path: Path, **options: object) -> LanguageModel:
    return load_either(runtime.prepare(request(path, **options)))  # type: ignore[arg-type]


QUANTISED = GgufOptions(cache_type_k="q8_0", cache_type_v="q4_0", flash_attn="on")


class TestResident(StateContract):
    """Also with one branch and no other: the cells have a sequence to go through all the same."""

    @pytest.fixture(
        params=[
            pytest.param({}, id="f16"),
            pytest.param({"options": QUANTISED}, id="quantised cache"),
            pytest.param({"max_nodes": 1, "max_branches": 1}, id="one", marks=pytest.mark.slow),
        ]
    )
    def model_factory(self, request: pytest.FixtureRequest) -> Callable[[], LanguageModel]:
        return lambda: resident(TARGET, **request.param)


@pytest.fixture(scope="module", params=["gemma2", "qwen2vl"])
def species(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows of attention, and positions of several parts."""
    folder = tmp_path_factory.mktemp("state")
    return zoo_files.write_model(folder / "m.gguf", Species(request.param))


class TestSpecies(StateContract):
    @pytest.fixture
    def model_factory(self, species: Path) -> Callable[[], LanguageModel]:
        return lambda: resident(species, max_branches=4)


def test_blocks_that_were_changed_end_no_process_and_leave_a_model_that_works() -> None:
    """Whoever can compute a checksum can change what is in a file: positions, counts, sizes."""
    chance = random.Random(3)
    with closing(resident(TARGET)) as model:
        kept = blocks_of(model)
        model.truncate(0)
        expected = one_by_one(model, [1, 2, 3])
        for _ in range(60):
            changed = [bytearray(block) for block in kept]
            block = chance.choice(changed)
            for _ in range(chance.choice([1, 4])):
                block[chance.randrange(min(len(block), 400))] = chance.randrange(256)
            with suppress(StateError):
                read_blocks(model, [bytes(block) for block in changed])
            model.truncate(0)
            assert np.array_equal(one_by_one(model, [1, 2, 3]), expected)


def test_what_a_paged_model_kept_serves_one_in_memory() -> None:
    with closing(load_paged(runtime.prepare(request(TARGET)))) as paged:
        kept, expected = blocks_of(paged), one_by_one(paged, MORE)
    with closing(resident(TARGET)) as model:
        read_blocks(model, kept)
        assert np.array_equal(one_by_one(model, MORE), expected)
