"""A prompt whose client leaves while it is read is kept as far as whole batches have read it: the
next try reuses that, and writes the text of one that was read in one go."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from test_gguf_types import quantised

import zoo_files
from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from leaving_clients import check_next_try
from paging_contract import load_either
from port_models import model_request
from zoo_species import EXPERTS_ONLY, Species

PROMPT = [(7 * n * n + 3 * n + 1) % 200 + 3 for n in range(990)]
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def k_quants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantised("Q4_K_M", tmp_path_factory.mktemp("Q4_K_M"))


def opened(request: ModelRequest, is_paged: bool = False) -> LanguageModel:
    return load_either(runtime.prepare(request), is_paged)


@pytest.mark.parametrize(
    ("kind", "n_batch", "is_paged", "n_slots", "drafted"),
    [
        ("Q8_0", 97, False, 1, False),
        ("Q8_0", 128, True, 1, True),
        pytest.param("Q8_0", 17, False, 1, True, marks=SLOW),
        pytest.param("Q8_0", 17, True, 2, False, marks=SLOW),
        pytest.param("Q8_0", 512, False, 2, False, marks=SLOW),
        pytest.param("Q4_K_M", 17, True, 1, False, marks=SLOW),
        pytest.param("Q4_K_M", 97, False, 2, True, marks=SLOW),
        pytest.param("Q4_K_M", 128, False, 1, False, marks=SLOW),
        pytest.param("Q4_K_M", 400, True, 1, True, marks=SLOW),
    ],
)
def test_a_prompt_is_kept_by_batches(
    kind: str, n_batch: int, is_paged: bool, n_slots: int, drafted: bool, k_quants: Path
) -> None:
    path = embedded_pair().target if kind == "Q8_0" else k_quants
    request = model_request(path, ctx_size=1024, batch_size=n_batch, n_slots=n_slots)
    check_next_try(partial(opened, request, is_paged), PROMPT, 320, drafted)


@pytest.mark.parametrize(
    ("name", "n_batch", "is_paged"),
    [
        ("gemma3", 128, False),
        pytest.param("gemma3", 17, True, marks=SLOW),
        pytest.param("gpt-oss", 128, True, marks=SLOW),
        pytest.param("qwen35", 97, False, marks=SLOW),
        pytest.param("qwen35", 128, True, marks=SLOW),
        pytest.param("mamba2", 17, False, marks=SLOW),
        pytest.param("granitehybrid", 128, False, marks=SLOW),
        pytest.param("qwen3next", 128, True, marks=SLOW),
    ],
)
def test_architectures_of_other_kinds(
    name: str, n_batch: int, is_paged: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.gguf"
    zoo_files.write_model(path, Species(name, name in EXPERTS_ONLY), {"context_length": 4096})
    request = model_request(path, ctx_size=2048, batch_size=n_batch, stores_prefixes=True)
    check_next_try(partial(opened, request, is_paged), PROMPT, 320)


def test_what_was_read_is_stored(tmp_path: Path) -> None:
    """Another text takes the slot meanwhile."""
    request = model_request(embedded_pair().target, ctx_size=1024, batch_size=128)
    check_next_try(partial(opened, request), PROMPT, 320, folder=tmp_path)
