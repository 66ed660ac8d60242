"""onnxruntime's own ways of decoding, as the bench measures them: the same text, fairly counted."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from sentences import refuses

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.errors import ContextOverflow, ModelError
from edgespec.ports.baselines import BaselineRequest, BaselineRun
from edgespec_runtimes.onnx import baselines, runtime
from edgespec_runtimes.onnx.files.vocabulary import read_vocabulary
from onnx_files import DATA_FILE, write_llama
from onnx_reference import WholeModel

PROMPT = "def read_lines(filename):\n"
N_TOKENS = 12
SURE = 0.02
"""Kernels round differently: where the best logit led by less, another text is no mistake."""
KINDS: dict[str, dict[str, object]] = {
    "fp32": {},
    "fp16": {"dtype": "float16"},
    "inside the graph": {"external": False},
    "fused": {"fused": True},
    "4 bits": {"bits": 4, "fused": True},
    "int8": {"bits": 8},
}


def request(model: Path, **changes: object) -> BaselineRequest:
    whole = BaselineRequest(model, None, PROMPT, N_TOKENS, 256, 1, lambda: 0)
    return replace(whole, **changes)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def mapped(model: Path) -> BaselineRun:
    return baselines.run("mmap", request(model))


def sure_tokens(model: Path) -> list[int]:
    """The tokens of onnxruntime decoding one by one, up to the first near tie."""
    vocabulary = read_vocabulary(model.parent, 320, [{"eos_token_id": 0}])
    prompt = vocabulary.encode(PROMPT)
    tokens, margins = WholeModel(model).greedy(prompt, N_TOKENS, vocabulary.eog_tokens)
    sure = takewhile(lambda step: margins[step] > SURE, range(len(tokens)))
    return [tokens[step] for step in sure]


def test_the_runtime_offers_them(model: Path):
    assert re.fullmatch(r"onnxruntime \d.*", runtime.baselines.LIBRARY)
    assert runtime.baselines.run("resident", request(model.parent)).tokens


@pytest.mark.costly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mmap", "resident"])
def test_the_text_is_onnxruntimes(tmp_path: Path, kind: str, name: str):
    model = write_llama(tmp_path, **KINDS[kind])
    expected = sure_tokens(model)
    assert expected
    assert list(baselines.run(name, request(model)).tokens[: len(expected)]) == expected


def test_decoding_is_a_token_a_pass(mapped: BaselineRun):
    assert len(mapped.rounds) == len(mapped.tokens) == N_TOKENS
    assert all((cost.n_tokens, cost.verified) == (1, 0) for cost in mapped.rounds)


def test_a_context_without_room_for_the_prompt_is_refused(model: Path):
    with pytest.raises(ContextOverflow):
        baselines.run("mmap", request(model, ctx_size=8))


def test_a_model_without_its_weights_is_refused(tmp_path: Path):
    model = write_llama(tmp_path)
    (tmp_path / DATA_FILE).unlink()
    with refuses(ModelError):
        baselines.run("mmap", request(model))
