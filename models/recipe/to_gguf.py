"""Converts a checkpoint of the recipe, of any kind, into one GGUF file in Q8_0 or F16.
Reads a checkpoint folder and tokenizer.json; needs no training code."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from transformers import LlamaConfig, LlamaForCausalLM

import llama_names as llama
from mixture import MixtureForCausalLM
from tokenizer import END_OF_TEXT, LLAMA_CPP_PRE

TYPES = {
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
}
EXPERT_TENSORS = {"gate": "ffn_gate_exps", "up": "ffn_up_exps", "down": "ffn_down_exps"}
SHARED_TENSORS = {
    "shared_gate": "ffn_gate_shexp",
    "shared_up": "ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
}
ROUTER = "ffn_gate_inp.weight"
LICENCE = "PSF-2.0"


def convert(checkpoint: Path, tokenizer: Path, out: Path, *, name: str, kind: str) -> None:
    """Write `out` with the matrices as `kind` ("Q8_0" or "F16") and the norms as F32.
    An existing file is replaced at the end, so that processes that have mapped it keep its old
    content."""
    model = load(checkpoint)
    tensor_type, file_type = TYPES[kind]
    unfinished = out.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, architecture(model.config))
    add_description(writer, name, file_type)
    add_shape(writer, model.config)
    add_tokenizer(writer, json.loads(tokenizer.read_text(encoding="utf-8")))
    for tensor_name, values in tensors(model):
        if values.ndim == 1 or tensor_name.endswith(ROUTER):
            writer.add_tensor(tensor_name, values)
        else:
            packed = quantize(values, tensor_type)
            writer.add_tensor(tensor_name, packed, raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(out)


def load(checkpoint: Path) -> LlamaForCausalLM:
    """A checkpoint of any kind, in float32."""
    config = LlamaConfig.from_pretrained(checkpoint)
    kind = MixtureForCausalLM if hasattr(config, "experts") else LlamaForCausalLM
    return kind.from_pretrained(checkpoint, dtype=torch.float32)


def architecture(config: LlamaConfig) -> str:
    """llama.cpp's LLaMA may be a mixture, but has neither shared experts nor dense layers first;
    ERNIE 4.5 is a LLaMA that has both."""
    experts = getattr(config, "experts", {})
    return "ernie4_5-moe" if experts.get("n_shared") or experts.get("n_dense_first") else "llama"


def add_description(writer: gguf.GGUFWriter, name: str, file_type: gguf.LlamaFileType) -> None:
    writer.add_type("model")
    writer.add_name(name)
    writer.add_organization("edgespec")
    writer.add_description("Trained on the Python standard library's source by models/recipe")
    writer.add_license(LICENCE)
    writer.add_languages(["en"])
    writer.add_tags(["text-generation", "code", "speculative-decoding"])
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_shape(writer: gguf.GGUFWriter, config: LlamaConfig) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if experts := getattr(config, "experts", None):
        writer.add_expert_count(experts["n_experts"])
        writer.add_expert_used_count(experts["n_used"])
    if architecture(config) == "llama":
        writer.add_feed_forward_length(experts["width"] if experts else config.intermediate_size)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_leading_dense_block_count(experts["n_dense_first"])
        writer.add_interleave_moe_layer_step(1)
        writer.add_expert_feed_forward_length(experts["width"])
        writer.add_expert_shared_feed_forward_length(experts["n_shared"] * experts["width"])
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict) -> None:
    """Tokens, their types and the merges of a Hugging Face byte-level BPE."""
    vocabulary = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    types = [
        gguf.TokenType.CONTROL if token == END_OF_TEXT else gguf.TokenType.NORMAL
        for token in tokens
    ]
    end_of_text = vocabulary[END_OF_TEXT]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(LLAMA_CPP_PRE)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(end_of_text)
    writer.add_eos_token_id(end_of_text)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def tensors(model: LlamaForCausalLM) -> list[tuple[str, np.ndarray]]:
    """GGUF names and float32 values; a mixture's experts stand behind the norm before them."""
    mixture, weights = getattr(model.config, "experts", None), model.state_dict()
    named = []
    for name, values in llama.tensors(model):
        named.append((name, values))
        if mixture and name.endswith("ffn_norm.weight"):
            layer = int(name.split(".")[1])
            if layer >= mixture.get("n_dense_first", 0):
                named += expert_tensors(weights, layer, mixture["n_experts"])
    return named


def expert_tensors(
    weights: dict[str, torch.Tensor], layer: int, n_experts: int
) -> list[tuple[str, np.ndarray]]:
    """A layer's router, its experts, stacked: [expert, rows, columns], and those of all tokens."""
    at = f"model.layers.{layer}.mlp."
    named = [(f"blk.{layer}.{ROUTER}", weights[f"{at}router.weight"].numpy())]
    for theirs, ours in EXPERT_TENSORS.items():
        values = weights[f"{at}{theirs}.weight"].numpy()
        if theirs == "down":  # [hidden, expert * width]
            stacked = values.reshape(len(values), n_experts, -1).swapaxes(0, 1)
        else:
            stacked = values.reshape(n_experts, -1, values.shape[1])
        named.append((f"blk.{layer}.{ours}.weight", np.ascontiguousarray(stacked)))
    for theirs, ours in SHARED_TENSORS.items():
        if f"{at}{theirs}.weight" in weights:
            values = weights[f"{at}{theirs}.weight"].numpy()
            named.append((f"blk.{layer}.{ours}.weight", values))
    return named


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--type", choices=TYPES, default="Q8_0")
    options = parser.parse_args()
    convert(
        options.checkpoint, options.tokenizer, options.out, name=options.name, kind=options.type
    )
