"""A recurrent or hybrid target that llama.cpp can roll back verifies lines of guesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import zoo_files
from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest
from edgespec.settings.options import RuntimeOptions
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.options import GgufOptions
from engine_cases import generate
from fake_model import FakeModel, fixed_text
from paging_contract import load_either
from port_models import model_request
from reference import LlamaCpp
from zoo_files import write_model
from zoo_species import Species

PROMPT = [10, 20, 30, 40, 50]
N_TOKENS = 40
WRONG = 5
"""Every so many tokens the draft is certain of another one."""


@pytest.fixture(scope="module", params=["lfm2", "qwen35", "granitehybrid", "plamo2"])
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its projections are quantised, as in real files: several rows of unquantised ones round
    otherwise than one."""
    unquantised = tuple(
        "conv.conv" if part == "conv" else part
        for part in zoo_files.UNQUANTISED
        if part not in {"ssm_alpha", "ssm_beta"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo_files, "UNQUANTISED", (*unquantised, "conv1d"))
        folder = tmp_path_factory.mktemp("hybrid")
        return write_model(folder / "m.gguf", Species(request.param))


def request_for(
    path: Path, n_guesses: int = 8, options: RuntimeOptions | None = None
) -> ModelRequest:
    return model_request(path, max_nodes=1 + n_guesses, batch_size=64, options=options)


@pytest.fixture(scope="module", params=["resident", "paged", "3 layers on a server, paged"])
def target(request: pytest.FixtureRequest, hybrid: Path) -> Iterator[LanguageModel]:
    options = None
    if "server" in request.param:
        if read_header(hybrid).architecture != "lfm2":
            pytest.skip(
                "a server copies no states, and rounds qwen35's unquantised products itself"
            )
        server = request.getfixturevalue("rpc_server")
        options = GgufOptions(rpc=server, n_gpu_layers=3)
    prepared = runtime.prepare(request_for(hybrid, options=options))
    with closing(load_either(prepared, "paged" in request.param)) as model:
        yield model


def draft_of(text: Sequence[int], n_vocab: int) -> FakeModel:
    """Knows the text, but for every fifth token."""
    guesses = [token + (n % WRONG == WRONG - 1) for n, token in enumerate(text)]
    return FakeModel(fixed_text(guesses, n_vocab, len(PROMPT)), n_vocab)


@pytest.mark.slow
def test_a_drafted_text_is_llama_cpps_own(target: LanguageModel, hybrid: Path) -> None:
    with LlamaCpp(hybrid, 128) as llama_cpp:
        expected = llama_cpp.greedy(PROMPT, N_TOKENS).tokens
    draft = draft_of(expected, target.info.n_vocab)
    result = generate(target, draft, prompt=PROMPT, max_tokens=N_TOKENS, fallback="full")
    assert list(result.tokens) == expected
    assert result.speculation.tokens_per_pass > 1.5


def test_the_state_before_each_guess_is_planned_for(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Species("qwen35"))

    def cache_bytes(n_guesses: int) -> int:
        with closing(runtime.prepare(request_for(path, n_guesses))) as prepared:
            return sum(row.nbytes for row in prepared.needs().fixed if "KV" in row.what)

    assert cache_bytes(8) > cache_bytes(1) > cache_bytes(0)


def test_a_line_is_as_long_as_can_be_dropped_again(hybrid: Path) -> None:
    with closing(runtime.prepare(replace(request_for(hybrid), max_nodes=4))) as prepared:
        info = prepared.info
        assert (info.max_rollback, info.max_nodes, info.max_branches) == (3, 4, 1)
