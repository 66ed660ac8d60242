"""Default sampling settings of conversations."""

import json

import pytest

from edgespec.chat.chat_sampling import DEFAULTS, chat_sampling
from edgespec_runtimes.gguf.file.chat_format import recommended_sampling
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.onnx.files.chat_format import chat_format as onnx_format
from gguf_files import F32, I32, tiny_llama


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": "hot"},
        {"top_p": float("nan")},
        {"top_k": [1]},
        {"seed_of_doubt": 1},
    ],
)
def test_a_wrong_recommendation_is_left_out(wrong):
    assert chat_sampling(wrong) == DEFAULTS


def test_a_gguf_file_recommends_by_its_own_keys(tmp_path):
    model = tiny_llama()
    model.metadata |= {
        "general.sampling.temp": (F32, 0.5),
        "general.sampling.top_k": (I32, 20),
        "general.sampling.penalty_repeat": (F32, 1.25),
    }
    sampling = recommended_sampling(read_header(model.write(tmp_path / "m.gguf")))
    assert sampling == {"temperature": 0.5, "top_k": 20, "repeat_penalty": 1.25}


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        ({"temperature": 0.6, "top_p": 0.9, "do_sample": True}, {"temperature": 0.6, "top_p": 0.9}),
        ({"repetition_penalty": 1.1, "top_k": None}, {"repeat_penalty": 1.1}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
    ],
)
def test_an_onnx_model_recommends_by_its_generation_config(config, sampling, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert onnx_format(tmp_path).sampling == sampling
