"""A model with recurrent state writes llama.cpp's text with a draft of its own kind."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from edgespec.session import session
from edgespec.settings.config import LoadSettings
from head_cases import LINE
from reference import LlamaCpp

N_EMBD, N_LAYER, D_STATE, D_CONV, DT_RANK = 64, 3, 8, 4, 4
N_INNER = 2 * N_EMBD


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Mamba (Gu and Dao, arXiv 2312.00752) with a token for every byte."""
    path = tmp_path_factory.mktemp("mamba") / "mamba.gguf"
    random = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_context_length(256)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(N_LAYER)
    writer.add_ssm_conv_kernel(D_CONV)
    writer.add_ssm_inner_size(N_INNER)
    writer.add_ssm_state_size(D_STATE)
    writer.add_ssm_time_step_rank(DT_RANK)
    writer.add_layer_norm_rms_eps(1e-5)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    tokens = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, "<|endoftext|>"])
    writer.add_token_types([1] * 256 + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(256)

    def add(name: str, *shape: int, value: float | None = None) -> None:
        data = random.normal(0, 0.2, shape) if value is None else np.full(shape, value)
        writer.add_tensor(name, data.astype(np.float32))

    add("token_embd.weight", 257, N_EMBD)
    add("output_norm.weight", N_EMBD, value=1.0)
    for layer in range(N_LAYER):
        add(f"blk.{layer}.attn_norm.weight", N_EMBD, value=1.0)
        add(f"blk.{layer}.ssm_in.weight", 2 * N_INNER, N_EMBD)
        add(f"blk.{layer}.ssm_conv1d.weight", N_INNER, D_CONV)
        add(f"blk.{layer}.ssm_conv1d.bias", N_INNER)
        add(f"blk.{layer}.ssm_x.weight", DT_RANK + 2 * D_STATE, N_INNER)
        add(f"blk.{layer}.ssm_dt.weight", N_INNER, DT_RANK)
        add(f"blk.{layer}.ssm_dt.bias", N_INNER)
        add(f"blk.{layer}.ssm_a", N_INNER, D_STATE, value=-1.0)
        add(f"blk.{layer}.ssm_d", N_INNER)
        add(f"blk.{layer}.ssm_out.weight", N_EMBD, N_INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_it_guesses_for_itself(mamba: Path) -> None:
    prompt = [100, 101, 102, 103]
    with LlamaCpp(mamba, 256) as llama_cpp:
        expected = llama_cpp.greedy(prompt, 12).tokens
    with session.load(LoadSettings(model=mamba, draft=mamba), LINE) as running:
        result = running.generate(prompt, max_tokens=12)
        assert list(result.tokens) == expected
        assert result.speculation.accepted and not result.notes
        assert running.generate(prompt, max_tokens=12).tokens == result.tokens


def test_a_generation_that_was_left_early_leaves_it_usable(mamba: Path) -> None:
    prompt = [100, 101, 102, 103]
    with session.load(LoadSettings(model=mamba)) as running:
        whole = running.generate(prompt, max_tokens=8).tokens
        events = running.stream(prompt, max_tokens=8)
        next(events)
        events.close()
        assert running.generate(prompt, max_tokens=8).tokens == whole
