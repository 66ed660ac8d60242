"""Models that do not write a token after the other are refused before llama.cpp sees them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.errors import ModelError
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file import architectures
from edgespec_runtimes.gguf.file.architectures import Trait
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.validation import validate
from gguf_files import ARRAY, BOOL, U32, tiny_llama
from sentences import refuses
from zoo_files import impostor, write_impostor, write_model
from zoo_species import Species, has_property
from zoo_species import architectures as architectures_of_llama_cpp

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "architecture", [name for name, found in architectures.ARCHITECTURES.items() if found.purpose]
)
def test_a_model_for_something_else_is_refused_with_a_next_step(
    architecture: str, tmp_path: Path
) -> None:
    """t5, bert and its family ended the process; diffusion models wrote with a draft."""
    path = write_impostor(tmp_path / "m.gguf", architecture)
    with refuses(ModelError) as caught:
        validate(read_header(path))
    assert "\n" not in str(caught.value)


def test_attention_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    model.metadata["llama.attention.causal"] = (BOOL, False)
    with refuses(ModelError):
        validate(read_header(model.write(tmp_path / "m.gguf")))


@pytest.mark.parametrize("pooling", [1, 3])
def test_a_model_that_pools_is_refused(pooling: int, tmp_path: Path) -> None:
    model = impostor("qwen3")
    model.metadata["qwen3.pooling_type"] = (U32, pooling)
    with refuses(ModelError):
        validate(read_header(model.write(tmp_path / "m.gguf")))


def test_an_encoder_that_only_llama_cpp_knows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(architectures.ARCHITECTURES, "t5")
    path = write_model(tmp_path / "m.gguf", Species("t5"))
    with refuses(ModelError):
        runtime.prepare(ModelRequest(path, "target", 64, 1, 1, 1))


@pytest.mark.parametrize(
    ("sentence", "is_named"),
    [
        ("One layer is run, of these architectures:", lambda found: found.own_layer is not None),
        ("Refused by name:", lambda found: Trait.NEEDS_TOKENS in found.traits),
        ("- one line:", lambda found: Trait.ONE_SEQUENCE in found.traits),
    ],
)
def test_the_page_on_choosing_a_model_names_them(
    sentence: str, is_named: Callable[[architectures.Architecture], bool]
) -> None:
    said = (ROOT / "docs" / "models.md").read_text().partition(sentence)[2].partition("\n\n")[0]
    named = {name for name, found in architectures.ARCHITECTURES.items() if is_named(found)}
    assert named and named <= set(re.findall(r"[\w-]+", said))


def test_layers_of_linear_attention_have_queries_and_no_kv_heads(tmp_path: Path) -> None:
    """Kimi-Linear was called damaged."""
    model = impostor("kimi-linear")
    model.metadata["kimi-linear.attention.head_count_kv"] = (ARRAY, U32, [0, 2])
    validate(read_header(model.write(tmp_path / "m.gguf")))


@pytest.mark.parametrize("can_roll_back", [True, False])
def test_the_page_on_choosing_a_model_names_all_recurrent_architectures(
    can_roll_back: bool,
) -> None:
    """Those that llama.cpp can roll back, and those whose lines are computed in copies."""
    page = (ROOT / "docs" / "models.md").read_text()
    section = page.partition("## Recurrent and hybrid targets")[2].partition("\n## ")[0]
    rolled_back, copied, *_ = section.partition("\n- ")[2].split("\n- ")
    named = set(re.findall(r"[\w-]+", rolled_back if can_roll_back else copied))
    keeps_state = "_Z21llm_arch_is_recurrentRK8llm_arch", "_Z18llm_arch_is_hybridRK8llm_arch"
    recurrent = {
        name
        for name in architectures_of_llama_cpp()
        if any(has_property(function, name) for function in keeps_state)
    }
    assert named & recurrent == {
        name
        for name in recurrent
        if has_property("_Z29llm_arch_supports_rs_rollbackRK8llm_arch", name) is can_roll_back
    }
