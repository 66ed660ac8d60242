"""The files of a repository that `USER/REPO[:QUANT]` means."""

import pytest

from edgespec.errors import ModelError, UsageError
from edgespec.hub.choice import HubFile, choose
from edgespec.settings import hub_reference
from edgespec.settings.hub_reference import HubReference
from sentences import refuses


def chosen(names: list[str], quant: str | None = None, **said: object) -> list[str]:
    files = [HubFile(name, 1 << 20) for name in names]
    return [file.name for file in choose(HubReference("u/r", quant, **said), files).files]


def test_a_name_has_a_repository_and_perhaps_a_quantisation():
    assert hub_reference.parse("user/My.Repo-GGUF:q4_K_M") == HubReference(
        "user/My.Repo-GGUF", "q4_K_M"
    )
    assert hub_reference.parse("user/repo") == HubReference("user/repo")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("hf.co/u/r-GGUF:Q4_K_M", HubReference("u/r-GGUF", "Q4_K_M")),
        ("https://huggingface.co/u/r", HubReference("u/r")),
        ("https://huggingface.co/u/r/tree/main", HubReference("u/r")),
        ("huggingface.co/u/r/tree/main/Q4%20x", HubReference("u/r", path="Q4 x")),
        (
            "https://huggingface.co/u/r/resolve/main/q/m.gguf?download=true",
            HubReference("u/r", path="q/m.gguf"),
        ),
    ],
)
def test_what_the_hub_s_pages_show_is_taken(text, meant):
    assert hub_reference.parse(text) == meant


@pytest.mark.parametrize("text", ["", "repo", "a/b/c", "a/b:", "a/b:c:d", "../x", "a b/c", "a/ü"])
def test_what_names_no_repository_is_refused(text):
    with refuses(UsageError):
        hub_reference.parse(text)


FILES = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-F16.gguf", "README.md"]


def test_without_one_it_is_llama_cpp_s_choice():
    assert chosen(FILES) == ["m-Q4_K_M.gguf"]


def test_part_of_a_quantisation_s_name_is_another_quantisation():
    with refuses(ModelError):
        chosen(FILES, "Q4_K")


def test_the_plain_name_wins_over_a_longer_one():
    names = ["m-UD-Q4_K_XL.gguf", "m-Q4_K_XL.gguf"]
    assert chosen(names, "Q4_K_XL") == ["m-Q4_K_XL.gguf"]
    assert chosen(names, "UD-Q4_K_XL") == ["m-UD-Q4_K_XL.gguf"]


def test_all_parts_of_a_split_model_come_in_order():
    parts = [f"Q4_K_M/m-Q4_K_M-{n:05d}-of-00003.gguf" for n in (3, 1, 2)]
    assert chosen(parts, "Q4_K_M") == sorted(parts)


def test_a_model_without_all_its_parts_is_refused():
    with refuses(ModelError):
        chosen(["m-Q4_0-00001-of-00003.gguf", "m-Q4_0-00003-of-00003.gguf"], "Q4_0")


HEADS = ["mtp-m-Q8_0.gguf", "eagle3-m-Q4_K_M.gguf", "q/dflash-m-F16.gguf", "dspark_m.gguf"]


@pytest.mark.parametrize("quant", [None, "Q4_K_M", "F16"])
def test_a_drafting_head_is_never_the_model(quant):
    with refuses(ModelError):
        chosen(HEADS, quant)
    if quant is None:
        assert chosen([*HEADS, "z-MTP-Q8_0.gguf"]) == ["z-MTP-Q8_0.gguf"]
    else:
        with refuses(ModelError):
            chosen([*HEADS, "z-MTP-Q8_0.gguf"], quant)


def test_who_asks_for_a_draft_takes_a_head_where_there_is_no_model():
    assert chosen(HEADS, "Q4_K_M", takes_heads=True) == ["eagle3-m-Q4_K_M.gguf"]
    assert chosen([*HEADS, "z-F16.gguf"], takes_heads=True) == ["z-F16.gguf"]


def test_an_address_of_a_file_or_folder_names_the_model_in_it():
    assert chosen(FILES, path="m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    parts = [f"q/m-Q2_K-{n:05d}-of-00002.gguf" for n in (1, 2)]
    assert chosen([*FILES, *parts], path=parts[0]) == parts
    assert chosen([*FILES, *parts], path="q") == parts
    assert chosen(BROWSER, path="onnx/model_int8.onnx")[0] == "onnx/model_int8.onnx"
    with refuses(ModelError):
        chosen(FILES, path="README.md")


def test_a_repository_without_gguf_says_what_to_choose():
    with refuses(ModelError):
        chosen(["config.json", "model.safetensors"])


BROWSER = [
    "config.json",
    "README.md",
    "tokenizer.json",
    "tokenizer_config.json",
    *(f"onnx/model{variant}.onnx" for variant in ("", "_fp16", "_int8", "_q4", "_q4f16")),
    "onnx/model.onnx_data",
    "onnx/model_q4.onnx_data",
    "onnx/model_q4f16.onnx_data",
    "onnx/model_q4f16.onnx_data_1",
    "onnx/vision_encoder_q4.onnx",
]
SETTINGS = ["config.json", "tokenizer.json", "tokenizer_config.json"]
BUILT = [
    f"{folder}/{name}"
    for folder in ("cpu-int4-awq", "cuda/cuda-fp16")
    for name in ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json")
]


@pytest.mark.parametrize(
    ("variant", "files"),
    [
        ("q4", ["onnx/model_q4.onnx", "onnx/model_q4.onnx_data"]),
        (
            "Q4F16",
            [
                "onnx/model_q4f16.onnx",
                "onnx/model_q4f16.onnx_data",
                "onnx/model_q4f16.onnx_data_1",
            ],
        ),
        ("int8", ["onnx/model_int8.onnx"]),
        ("model", ["onnx/model.onnx", "onnx/model.onnx_data"]),
        (None, ["onnx/model_q4.onnx", "onnx/model_q4.onnx_data"]),
    ],
)
def test_an_onnx_variant_comes_with_its_weights_and_settings(variant, files):
    graph, *others = files
    assert chosen(BROWSER, variant) == [graph, *sorted([*others, *SETTINGS])]


def test_a_folder_s_name_names_what_onnxruntime_genai_built():
    folder = "cpu-int4-awq"
    expected = ["model.onnx", "genai_config.json", "model.onnx.data", "tokenizer.json"]
    for variant in (folder, "int4", None):
        assert chosen(BUILT, variant) == [f"{folder}/{name}" for name in expected]


def test_an_onnx_variant_that_is_missing_is_told_with_the_others():
    with refuses(ModelError):
        chosen(BROWSER, "q8")
    with refuses(ModelError):
        chosen(BUILT, "q8")


def test_gguf_comes_before_onnx_unless_its_name_is_an_onnx_variant_s():
    both = [*FILES, *BROWSER]
    assert chosen(both) == ["m-Q4_K_M.gguf"]
    assert chosen(both, "q4f16")[0] == "onnx/model_q4f16.onnx"
