"""Sampling settings that a model recommends reach its session, and what measures it."""

import json

import pytest

import edgespec
from edgespec.chat.chat_sampling import DEFAULTS
from edgespec.cli.invocation import measured_sampling
from edgespec.settings.config import LoadSettings, SamplingParams
from gguf_files import F32, I32, tiny_llama
from onnx_files import write_llama


def test_of_a_gguf_file(tmp_path):
    model = tiny_llama()
    model.metadata |= {
        "general.sampling.temp": (F32, 0.5),
        "general.sampling.top_k": (I32, -1),
        "general.sampling.top_p": (F32, 7.0),  # no probability
    }
    path = model.write(tmp_path / "m.gguf")
    with edgespec.load(LoadSettings(model=path)) as session:
        assert session.chat_sampling == {**DEFAULTS, "temperature": 0.5, "top_k": 0}
        chats = SamplingParams(**session.chat_sampling)
    assert measured_sampling(path, None) == chats
    warmer = measured_sampling(path, 1.0)
    assert warmer == chats.model_copy(update={"temperature": 1.0})


@pytest.mark.slow
def test_of_an_onnx_folder(tmp_path):
    model = write_llama(tmp_path / "m")
    told = {"eos_token_id": 0, "top_p": 0.5}
    (model.parent / "generation_config.json").write_text(json.dumps(told))
    with edgespec.load(LoadSettings(model=model)) as session:
        assert session.chat_sampling == {**DEFAULTS, "top_p": 0.5}
        chats = SamplingParams(**session.chat_sampling)
    assert measured_sampling(model, None) == chats
