"""Exports small random models of each kind into a folder, as their owners would.

Runs in the environment that `tests/measure.py exports` makes, with `tests` in PYTHONPATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import transformers
from make_genai import SHAPE, save_checkpoint
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)
from optimum.exporters.onnx import main_export

LARGER = SHAPE | {
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 16,
    "max_position_embeddings": 512,
}
"""63 million weights, so that 4-bit exports, too, are measured and paged."""
CONFIGS = {
    "llama": transformers.LlamaConfig(**LARGER),
    "qwen3": transformers.Qwen3Config(**LARGER),
    "gemma2": transformers.Gemma2Config(**LARGER, sliding_window=24, query_pre_attn_scalar=16),
    "gpt2": transformers.GPT2Config(
        vocab_size=1024,
        n_positions=512,
        n_embd=512,
        n_layer=16,
        n_head=8,
        bos_token_id=0,
        eos_token_id=0,
    ),
}


def build(checkpoint: Path, into: Path, precision: str, *options: str) -> None:
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-e", "cpu"]
    command += ["-p", precision, "-i", str(checkpoint), "-o", str(into), "-c", f"{into}.cache"]
    subprocess.run([*command, *(["--extra_options", *options] if options else [])], check=True)


def optimum(checkpoint: Path, into: Path, dtype: str) -> None:
    main_export(
        str(checkpoint),
        output=into,
        task="text-generation-with-past",
        dtype=dtype,
        device="cpu",
        do_validation=False,
    )


def beside(source: Path, into: Path) -> Path:
    """The folder for another form of an export, with its tokenizer and configuration."""
    shutil.copytree(source, into, ignore=shutil.ignore_patterns("*.onnx*"))
    return into / "model.onnx"


def to_int8(source: Path, into: Path) -> None:
    quantize_dynamic(
        source / "model.onnx",
        beside(source, into),
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul"],
        use_external_data_format=True,
    )


def to_four_bits(source: Path, into: Path) -> None:
    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True)
    quantiser = MatMulNBitsQuantizer(onnx.load(source / "model.onnx"), algo_config=config)
    quantiser.process()
    quantiser.model.save_model_to_file(str(beside(source, into)), True)


def main(out: Path) -> None:
    for name, config in CONFIGS.items():
        save_checkpoint(out / "checkpoints" / name, config)
    llama = out / "checkpoints" / "llama"
    build(llama, out / "llama-builder-fp32", "fp32")
    build(llama, out / "llama-builder-int4", "int4")
    build(llama, out / "llama-builder-int4-level1", "int4", "int4_accuracy_level=1")
    for name in ("qwen3", "gemma2"):
        build(out / "checkpoints" / name, out / f"{name}-builder-fp32", "fp32")
    optimum(llama, out / "llama-optimum-fp32", "fp32")
    optimum(llama, out / "llama-optimum-fp16", "fp16")
    optimum(out / "checkpoints" / "gpt2", out / "gpt2-optimum-fp32", "fp32")
    to_int8(out / "llama-optimum-fp32", out / "llama-optimum-int8")
    to_four_bits(out / "llama-optimum-fp32", out / "llama-optimum-q4")
    to_four_bits(out / "llama-optimum-fp16", out / "llama-optimum-q4f16")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
