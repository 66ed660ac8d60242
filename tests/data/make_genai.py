"""Makes the folders genai-* beside it again: tiny random models as onnxruntime-genai builds them.

Needs torch, transformers 5 and onnxruntime-genai; PYTHONPATH=tests python tests/data/make_genai.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
import transformers

from onnx_files import write_tokenizer

HERE = Path(__file__).parent
SHAPE = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
MODELS = {
    "genai-llama-fp32": (transformers.LlamaConfig(**SHAPE), "fp32"),
    "genai-qwen3-int4": (
        transformers.Qwen3Config(**SHAPE | {"hidden_size": 64, "num_hidden_layers": 4}),
        "int4",
    ),
    "genai-gemma2-fp32": (
        transformers.Gemma2Config(**SHAPE, sliding_window=24, query_pre_attn_scalar=16),
        "fp32",
    ),
}


def save_checkpoint(folder: Path, config: transformers.PretrainedConfig) -> None:
    """A random model as transformers stores it, with a tokenizer."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:  # far enough apart that the best token is clear
                weight.normal_(0, 1.2 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json", config.vocab_size)
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


def make(name: str, config: transformers.PretrainedConfig, precision: str) -> None:
    options = ["-p", precision, "-e", "cpu"]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        save_checkpoint(checkpoint, config)
        build = [sys.executable, "-m", "onnxruntime_genai.models.builder", *options]
        places = ["-i", str(checkpoint), "-o", str(HERE / name), "-c", f"{folder}/cache"]
        subprocess.run([*build, *places], check=True)
    (HERE / name / "MADE.txt").write_text(
        f"A random {config.architectures[0]}, made by make_genai.py beside this folder with\n"
        f"onnxruntime-genai {version('onnxruntime-genai')}, "
        f"transformers {version('transformers')} and torch {version('torch')}:\n"
        f"python -m onnxruntime_genai.models.builder {' '.join(options)} -i CHECKPOINT -o {name}\n"
    )


if __name__ == "__main__":
    for made, (shape, kind_of_weights) in MODELS.items():
        make(made, shape, kind_of_weights)
