"""Exports a LLaMA to ONNX, by Optimum's task text-generation-with-past.

Reads a checkpoint folder of the recipe, or a GGUF file such as `edgespec models enlarge` writes;
needs no training code, and transformers 4 (the extra `export`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import warnings
from pathlib import Path

import torch
from optimum.exporters.onnx import onnx_export_from_model
from transformers import LlamaForCausalLM, logging

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
TOLERANCES = {"fp32": 1e-3, "fp16": 0.1}
"""Tolerances of Optimum's own comparison with PyTorch, in logits; compare.py compares tokens."""


def export(checkpoint: Path, out: Path, *, dtype: str, tokenizer: Path | None = None) -> None:
    """Write the folder `out`: model.onnx, config.json, generation_config.json, tokenizer.json.

    The tied head is a Transpose of the embedding, which the file holds once. Files of an earlier
    export are replaced at the end, so that processes that have mapped one keep its old content.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        unfinished = Path(folder)
        with warnings.catch_warnings():  # of tracing: the exporter knows what it makes constant
            warnings.simplefilter("ignore")
            onnx_export_from_model(
                load(checkpoint, DTYPES[dtype]),
                unfinished,
                task="text-generation-with-past",
                atol=TOLERANCES[dtype],
            )
        if tokenizer is not None:
            shutil.copyfile(tokenizer, unfinished / "tokenizer.json")
        for file in unfinished.iterdir():
            file.replace(out / file.name)


def load(checkpoint: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model, with the base of its rotation, which transformers 5 writes where 4 does not
    look."""
    if checkpoint.suffix == ".gguf":
        keep_equal_tensors()
        folder, file = checkpoint.parent, checkpoint.name
        return LlamaForCausalLM.from_pretrained(folder, gguf_file=file, dtype=dtype).eval()
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    rope_theta = config["rope_parameters"]["rope_theta"]
    return LlamaForCausalLM.from_pretrained(checkpoint, dtype=dtype, rope_theta=rope_theta).eval()


def keep_equal_tensors() -> None:
    """Let the exporter store tensors of equal content, such as an enlarged model has, each."""
    share = torch._C._jit_pass_onnx_deduplicate_initializers
    torch._C._jit_pass_onnx_deduplicate_initializers = lambda graph, tensors, training: share(
        graph, tensors, True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder of a checkpoint, or a GGUF file")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="default: fp32")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json to copy beside the model")
    options = parser.parse_args()
    logging.set_verbosity_error()  # it warns that the checkpoint has no tokenizer
    export(options.checkpoint, options.out, dtype=options.dtype, tokenizer=options.tokenizer)
