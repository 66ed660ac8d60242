"""Plans of files with the shapes of models that people fetch: all weights are zero and take no room
on the disk, so a plan is exact and nothing can be said of texts.

Hyperparameters are those of published configurations and of logs of llama.cpp with their GGUF files
(docs/models.md names both). Types are those of llama.cpp's Q4_K_M; gpt-oss has its own.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec_runtimes.gguf.file.layout import KINDS
from gguf_files import Gguf, Tensor
from zoo_files import model_metadata, tensors_wanted
from zoo_species import Species

DISK = 2_000_000_000
UNQUANTISED = (
    "conv1d",
    "shortconv.conv.",
    "norm",
    "gate_inp",
    "ssm_a",
    "ssm_d",
    "ssm_dt",
    "ssm_beta",
    "ssm_alpha",
)


class PerLayer(tuple[Any, ...]):
    """Values of the first layers, of which each later one repeats one."""


@dataclass(frozen=True)
class FetchedModel:
    """A model by its hyperparameters, told for the first layers as far as they differ."""

    name: str
    architecture: str
    n_layers: int
    n_first: int
    n_vocab: int
    values: dict[str, Any]
    like: Callable[[int], int] = field(default=lambda layer: layer)
    """The one of the first layers that a layer is like, modulo their number."""
    tied: bool = False
    is_mixture: bool = False

    def hyperparameters(self, n_layers: int) -> dict[str, Any]:
        layers = [self.like(layer) % self.n_first for layer in range(n_layers)]
        if n_layers == self.n_first:
            layers = [*range(n_layers)]
        told = {
            key: [value[layer] for layer in layers] if isinstance(value, PerLayer) else value
            for key, value in self.values.items()
        }
        return {**told, "block_count": n_layers, "context_length": 1 << 15}

    def file(self, folder: Path) -> Path:
        species = Species(self.architecture, self.is_mixture)
        small = Gguf(model_metadata(species, self.hyperparameters(self.n_first)))
        whole = Gguf(model_metadata(species, self.hyperparameters(self.n_layers)))
        kind, element, texts = whole.metadata["tokenizer.ggml.tokens"]
        n_texts, further = len(texts), (f"<further {n}>" for n in range(self.n_vocab - len(texts)))
        whole.metadata["tokenizer.ggml.tokens"] = (kind, element, [*texts, *further])
        types = whole.metadata["tokenizer.ggml.token_type"][:2], [3] + [1] * (self.n_vocab - 1)
        whole.metadata["tokenizer.ggml.token_type"] = (*types[0], types[1])
        of_layer: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        for name, shape in tensors_wanted(small, folder / "m", fills=False):
            if name.startswith("blk."):
                _, layer, rest = name.split(".", 2)
                of_layer.setdefault(int(layer), []).append((rest, shape))
            elif not (self.tied and name == "output.weight"):
                its = tuple(self.n_vocab if n == n_texts else n for n in shape)
                whole.tensors.append(self.tensor(name, its, 0))
        whole.tensors += [
            self.tensor(f"blk.{layer}.{rest}", shape, layer)
            for layer in range(self.n_layers)
            for rest, shape in of_layer[self.like(layer) % self.n_first]
        ]
        return whole.write_hollow(folder / f"{self.name.replace(' ', '-')}.gguf")

    def tensor(self, name: str, shape: tuple[int, ...], layer: int) -> Tensor:
        kind = KINDS[self.kind(name, shape, layer)]
        content = Zeros(kind.nbytes(math.prod(shape)))
        return Tensor(name, shape, kind.code, content)  # type: ignore[arg-type]

    def kind(self, name: str, shape: Sequence[int], layer: int) -> str:
        if (
            len(shape) < 2
            or name.endswith((".bias", ".scale"))
            or any(p in name for p in UNQUANTISED)
        ):
            return "F32"
        if self.architecture == "gpt-oss":
            return "MXFP4" if "_exps" in name else "Q8_0"
        n, i = self.n_layers, layer
        more = i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
        is_fine = name == ("token_embd.weight" if self.tied else "output.weight") or (
            more and any(part in name for part in ("attn_v.", "ffn_down"))
        )
        if shape[0] % 256:
            return "Q8_0" if is_fine else "Q5_0"
        return "Q6_K" if is_fine else "Q4_K"


class Zeros:
    """Content of a tensor in a hollow file: its length."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n


_LINEAR = {
    "full_attention_interval": 4,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "rope.dimension_count": 64,
    "rope.dimension_sections": [11, 11, 10, 0],
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
}
_GEMMA = {
    "embedding_length_per_layer_input": 0,
    "attention.shared_kv_layers": 0,
    "attention.key_length": 512,
    "attention.value_length": 512,
    "attention.key_length_swa": 256,
    "attention.value_length_swa": 256,
    "attention.sliding_window": 1024,
    "attention.sliding_window_pattern": PerLayer((True, True, True, True, True, False)),
    "rope.dimension_count": 512,
    "rope.dimension_count_swa": 256,
    "attention.head_count": 16,
}
_ATTENTION_1_2 = {2, 5, 8, 10, 12, 14}
_ATTENTION_8 = {2, 6, 10, 14, 18, 21}
_NEMOTRON = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"

SHAPES = (
    FetchedModel(
        "Qwen3.6-35B-A3B", "qwen35moe", 40, 4, 248_320,
        {
            **_LINEAR, "embedding_length": 2048, "attention.head_count": 16,
            "attention.head_count_kv": 2, "ssm.inner_size": 4096, "ssm.time_step_rank": 32,
            "expert_count": 256, "expert_used_count": 8, "expert_feed_forward_length": 512,
            "expert_shared_feed_forward_length": 512,
        },
        is_mixture=True,
    ),
    FetchedModel(
        "Qwen3.6-27B", "qwen35", 64, 4, 248_320,
        {
            **_LINEAR, "embedding_length": 5120, "feed_forward_length": 17_408,
            "attention.head_count": 24, "attention.head_count_kv": 4, "ssm.inner_size": 6144,
            "ssm.time_step_rank": 48,
        },
    ),
    FetchedModel(
        "Gemma 4 26B-A4B", "gemma4", 30, 6, 262_144,
        {
            **_GEMMA, "embedding_length": 2816, "feed_forward_length": 2112,
            "attention.head_count_kv": PerLayer((8, 8, 8, 8, 8, 2)), "expert_count": 128,
            "expert_used_count": 8, "expert_feed_forward_length": 704,
        },
        tied=True, is_mixture=True,
    ),
    FetchedModel(
        "Gemma 4 12B", "gemma4", 48, 6, 262_144,
        {
            **_GEMMA, "embedding_length": 3840, "feed_forward_length": 15_360,
            "attention.head_count_kv": PerLayer((8, 8, 8, 8, 8, 1)),
        },
        tied=True,
    ),
    FetchedModel(
        "gpt-oss-20b", "gpt-oss", 24, 2, 201_088,
        {
            "embedding_length": 2880, "feed_forward_length": 2880, "attention.head_count": 64,
            "attention.head_count_kv": 8, "attention.key_length": 64,
            "attention.value_length": 64, "rope.dimension_count": 64,
            "attention.sliding_window": 128, "expert_count": 32, "expert_used_count": 4,
            "expert_feed_forward_length": 2880,
        },
        is_mixture=True,
    ),
    FetchedModel(
        "LFM2.5-1.2B", "lfm2", 16, 3, 65_536,
        {
            "embedding_length": 2048, "feed_forward_length": 8192, "attention.head_count": 32,
            "attention.head_count_kv": PerLayer((0, 0, 8)), "shortconv.l_cache": 3,
        },
        like=lambda layer: 2 if layer in _ATTENTION_1_2 else 0, tied=True,
    ),
    FetchedModel(
        "LFM2.5-8B-A1B", "lfm2moe", 24, 4, 128_000,
        {
            "embedding_length": 2048, "feed_forward_length": 7168, "attention.head_count": 32,
            "attention.head_count_kv": PerLayer((0, 0, 8, 0)), "shortconv.l_cache": 3,
            "leading_dense_block_count": 2, "expert_count": 32, "expert_used_count": 4,
            "expert_feed_forward_length": 1792,
        },
        like=lambda layer: 0 if layer < 2 else 2 if layer in _ATTENTION_8 else 3, tied=True,
        is_mixture=True,
    ),
    FetchedModel(
        "GLM-4.7-Flash", "deepseek2", 47, 2, 154_880,
        {
            "embedding_length": 2048, "feed_forward_length": 10_240, "attention.head_count": 20,
            "attention.head_count_kv": 1, "attention.q_lora_rank": 768,
            "attention.kv_lora_rank": 512, "attention.key_length": 576,
            "attention.value_length": 512, "attention.key_length_mla": 256,
            "attention.value_length_mla": 256, "rope.dimension_count": 64,
            "leading_dense_block_count": 1, "expert_count": 64, "expert_used_count": 4,
            "expert_feed_forward_length": 1536, "expert_shared_count": 1,
        },
        like=lambda layer: min(layer, 1), is_mixture=True,
    ),
    FetchedModel(
        "Nemotron-3-Nano-30B-A3B", "nemotron_h_moe", 52, 3, 131_072,
        {
            "embedding_length": 2688, "attention.head_count": 32,
            "attention.head_count_kv": PerLayer((0, 0, 2)),
            "feed_forward_length": PerLayer((0, 1856, 0)), "attention.key_length": 128,
            "attention.value_length": 128, "rope.dimension_count": 84, "ssm.inner_size": 4096,
            "ssm.state_size": 128, "ssm.group_count": 8, "ssm.time_step_rank": 64,
            "expert_count": 128, "expert_used_count": 6, "expert_feed_forward_length": 1856,
            "expert_shared_feed_forward_length": 3712, "expert_latent_length": None,
        },
        like=lambda layer: "ME*".index(_NEMOTRON[layer]), is_mixture=True,
    ),
    FetchedModel(
        "Qwen3-Coder-30B-A3B", "qwen3moe", 48, 1, 151_936,
        {
            "embedding_length": 2048, "attention.head_count": 32, "attention.head_count_kv": 4,
            "attention.key_length": 128, "attention.value_length": 128,
            "rope.dimension_count": 128, "expert_count": 128, "expert_used_count": 8,
            "expert_feed_forward_length": 768,
        },
        is_mixture=True,
    ),
    FetchedModel(
        "Llama-3.1-8B", "llama", 32, 1, 128_256,
        {
            "embedding_length": 4096, "feed_forward_length": 14_336, "attention.head_count": 32,
            "attention.head_count_kv": 8,
        },
    ),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="models; all when none is named")
    parser.add_argument("--memory-budget", default="8GiB")
    parser.add_argument("--ctx-size", default="4096")


def measure(arguments: argparse.Namespace) -> None:
    print("| model | architecture | file | smallest, process | kept | a token reads | tokens/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for shape in SHAPES:
        if not arguments.names or shape.name in arguments.names:
            print(row(shape, arguments.memory_budget, arguments.ctx_size), flush=True)


def row(shape: FetchedModel, budget: str, ctx_size: str) -> str:
    """A row of the table in docs/models.md, of a process of its own: each reports its own size."""
    with tempfile.TemporaryDirectory() as folder:
        path = shape.file(Path(folder))
        words = f"plan -m {path} -c {ctx_size} --memory-budget {budget} --no-draft --json"
        command = [sys.executable, "-m", "edgespec", *words.split(), "--read-limit", str(DISK)]
        plan = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        size = path.stat().st_size
    read, kept = plan["bytes_per_pass"], plan["pinned_bytes"] + plan["expert_cache_bytes"]
    reads = f"{kept / 2**30:.1f} GiB | {read / 1e6:,.0f} MB | {DISK / read:.2g}" if read else ""
    least = f"{plan['smallest_bytes'] / 2**20:,.0f} MiB, {plan['rows'][0]['nbytes'] >> 20}"
    return (
        f"| {shape.name} | {shape.architecture} | {size / 1e9:.1f} GB "
        f"| {least} | {reads or 'all | | in memory'} |"
    )
