"""Sources of chat templates: GGUF metadata and the files beside ONNX models."""

import json

import pytest

from edgespec.errors import ModelError
from edgespec.ports.language_model import ChatFormat
from edgespec_runtimes.gguf.file.chat_format import chat_format, special_tokens
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.onnx.files.chat_format import chat_format as onnx_format
from gguf_files import ARRAY, STRING, U32, tiny_llama


def of_gguf(tmp_path, metadata) -> ChatFormat:
    model = tiny_llama()
    kind, of_what, tokens = model.metadata["tokenizer.ggml.tokens"]
    tokens = ["<s>", "</s>", *tokens[2:]]
    model.metadata |= metadata | {"tokenizer.ggml.tokens": (kind, of_what, tokens)}
    header = read_header(model.write(tmp_path / "m.gguf"))
    return chat_format(header, header.texts_of({*special_tokens(header).values()})[0])


def test_a_gguf_names_its_template_and_its_tokens(tmp_path):
    told = of_gguf(
        tmp_path,
        {
            "tokenizer.chat_template": (STRING, "{{ messages }}"),
            "tokenizer.chat_template.tool_use": (STRING, "{{ tools }}"),
            "tokenizer.ggml.bos_token_id": (U32, 0),
            "tokenizer.ggml.eos_token_id": (U32, 1),
            "tokenizer.ggml.padding_token_id": (U32, 99_999),
        },
    )
    assert told.templates == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    assert told.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_template_of_the_wrong_type_is_none(tmp_path):
    told = of_gguf(tmp_path, {"tokenizer.chat_template": (ARRAY, STRING, ["a"])})
    assert told.templates == {}


def test_a_tokenizer_config_has_a_template_and_tokens_in_either_shape(tmp_path):
    config = {
        "chat_template": "{{ messages }}",
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": "</s>",
        "unk_token": None,
        "add_bos_token": True,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    told = onnx_format(tmp_path)
    assert told.templates == {"default": "{{ messages }}"}
    assert told.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_templates_may_have_names(tmp_path):
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert onnx_format(tmp_path).templates == {"default": "a", "tool_use": "b"}


def test_a_jinja_file_wins(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    (tmp_path / "chat_template.jinja").write_text("new")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert onnx_format(tmp_path).templates == {"default": "new", "tool_use": "tools"}


def test_nothing_beside_a_model_is_no_error(tmp_path):
    assert onnx_format(tmp_path) == ChatFormat()


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError):
        onnx_format(tmp_path)


def test_tools_have_a_template_of_their_own_where_the_model_has_one():
    told = ChatFormat({"default": "a", "tool_use": "b"})
    assert told.source("tiny") == "a"
    assert told.source("tiny", with_tools=True) == "b"
    assert ChatFormat({"default": "a"}).source("tiny", with_tools=True) == "a"
