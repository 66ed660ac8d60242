"""Writes a tiny random model of any architecture, with the tensors that llama.cpp itself asks for.

llama.cpp is shown the metadata alone and names every tensor that it would load, with its shape.
That may end the process where metadata are wrong: call `write_model` in a child.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.bindings import lib
from gguf_files import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    TYPE_CODES,
    U32,
    U64,
    Gguf,
    Tensor,
    byte_level_vocabulary,
    pack_weights,
    tiny_llama,
)
from zoo_species import COMMON_KEYS, EXPERTS_ONLY, Species, hyperparameters

N_VOCAB = 512
LARGER_VOCABULARIES = {"chameleon": 10240, "qwen3tts": 3072}
"""Tokens that a graph takes for granted."""

LEFT_OUT = {"rwkv6qwen2": "time_mix_first"}
"""Parts of the names of tensors that llama.cpp would load and must not find."""

UNQUANTISED = (
    *("conv", "ssm_a", "ssm_d", "ssm_x", "ssm_dt", "ssm_beta", "ssm_alpha", "_norm"),
    *("time_mix", "channel_mix_lerp", "position_embd", "token_types", "ffn_gate_inp", "rel_b"),
    *("altup", "router", "indexer_compressor_ape", "ape", "hc_", "hyper", "sinks", "kpool"),
)
"""Parts of the names of matrices that files hold in F32."""


def write_model(
    path: Path,
    species: Species,
    changes: dict[str, Any] | None = None,
    seed: int = 0,
    cousin: bool = False,
) -> Path:
    """`changes` are hyperparameters that differ from the tiny model's own; None leaves one out. A
    cousin has another last layer: as a draft it is right now and then."""
    return random_model(path, species, changes, seed, cousin).write(path)


GUESSING: dict[str, dict[str, Any]] = {"glm4moe": {"rope.dimension_sections": None}}
"""Changes of models that guess for themselves, besides the layer that does."""


def write_guessing(path: Path, architecture: str, knows: bool = False) -> Path:
    """A model with a layer of its own that guesses (MTP). If it `knows`, the model's other layers
    add nothing to the embedding of the last token, and it says what they say."""
    species = Species(architecture, architecture in EXPERTS_ONLY)
    changes = {"nextn_predict_layers": 1} | GUESSING.get(architecture, {})
    model = random_model(path, species, changes)
    if knows:
        _make_predictable(model)
    return model.write(path)


def write_apart(path: Path, architecture: str) -> tuple[Path, Path]:
    """The model of `write_guessing` as some repositories have it: without the layer, and the layer
    in a file of its own."""
    changes = {"nextn_predict_layers": 1} | GUESSING.get(architecture, {})
    model = random_model(path, Species(architecture, architecture in EXPERTS_ONLY), changes)
    _make_predictable(model)
    key, everything = f"{architecture}.block_count", model.tensors
    n_layers = model.metadata[key][1] - 1
    own = [tensor for tensor in everything if tensor.name.startswith(f"blk.{n_layers}.")]
    shared = [tensor for tensor in everything if not tensor.name.startswith("blk.")]
    model.tensors = own + shared
    layer = model.write(path.with_name(f"mtp-{path.name}"))
    model.tensors = [tensor for tensor in everything if tensor not in own]
    model.metadata |= {key: (U32, n_layers), f"{architecture}.nextn_predict_layers": (U32, 0)}
    for name, (kind, *value) in model.metadata.items():
        if name.startswith(architecture) and len(value) == 2 and len(value[1]) == n_layers + 1:
            model.metadata[name] = (kind, value[0], value[1][:-1])
    return model.write(path), layer


def _make_predictable(model: Gguf) -> None:
    tensors = {tensor.name: tensor for tensor in model.tensors}
    for name, tensor in tensors.items():
        if any(part in name for part in ("attn_output.", "ffn_down", "ssm_out.")):
            tensor.data = bytes(len(tensor.data))
        elif name.endswith("norm.weight") and ("nextn" in name or name == "output_norm.weight"):
            sure = 4 if name == "output_norm.weight" else 1
            tensor.data = np.full(tensor.shape, sure, "<f4").tobytes()
    for name, tensor in tensors.items():
        if name.endswith("nextn.eh_proj.weight"):
            width = tensor.shape[1]
            left = np.concatenate([np.eye(width), np.zeros((width, width))], axis=1)
            tensor.data = pack_weights(left.astype("<f4"), "Q8_0")
        elif name.endswith("nextn.shared_head_norm.weight"):
            tensor.data = tensors["output_norm.weight"].data
        elif name.endswith("nextn.embed_tokens.weight"):
            tensor.data = tensors["token_embd.weight"].data
        elif name.endswith("nextn.shared_head_head.weight"):
            tensor.data = tensors["output.weight"].data


def random_model(
    path: Path,
    species: Species,
    changes: dict[str, Any] | None = None,
    seed: int = 0,
    cousin: bool = False,
) -> Gguf:
    """The content of `write_model`; `path` is where scratch files may be."""
    model = Gguf(model_metadata(species, changes or {}))
    n_layers = model.metadata[f"{species.architecture}.block_count"][1]
    wanted = tensors_wanted(model, path)
    tied = "output.weight" not in dict(wanted)
    unwanted = LEFT_OUT.get(species.architecture)
    n_guessing = model.metadata.get(f"{species.architecture}.nextn_predict_layers", (U32, 0))[1]
    guessing = tuple(f"blk.{layer}." for layer in range(n_layers - n_guessing, n_layers))
    for name, shape in wanted:
        if unwanted and unwanted in name:
            continue
        if name.startswith(guessing) and name.endswith("scale"):
            continue  # llama.cpp counts them even where it skips what they scale
        own_seed = seed + (cousin and name.startswith(f"blk.{n_layers - 1}."))
        kind, content = _weights(name, shape, own_seed, tied)
        model.tensors.append(Tensor(name, shape, TYPE_CODES[kind], content))
    return model


def impostor(architecture: str) -> Gguf:
    """A LLaMA that claims to be of another architecture."""
    model = tiny_llama()
    model.metadata = {
        key.replace("llama.", f"{architecture}.") if key.startswith("llama.") else key: value
        for key, value in model.metadata.items()
    }
    model.metadata["general.architecture"] = (STRING, architecture)
    return model


def write_impostor(path: Path, architecture: str) -> Path:
    return impostor(architecture).write(path)


def model_metadata(species: Species, changes: dict[str, Any]) -> dict[str, tuple]:
    name = species.architecture
    tokens, merges = byte_level_vocabulary()
    n_vocab = LARGER_VOCABULARIES.get(name, N_VOCAB)
    tokens += [f"<filler {number}>" for number in range(n_vocab - len(tokens))]
    own = hyperparameters(species) | changes
    return {
        "general.architecture": (STRING, name),
        "general.name": (STRING, "tiny"),
        **{
            key if key.startswith(COMMON_KEYS) else f"{name}.{key}": _typed(value)
            for key, value in own.items()
            if value is not None
        },
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "qwen2"),
        "tokenizer.ggml.tokens": (ARRAY, STRING, tokens),
        "tokenizer.ggml.token_type": (ARRAY, I32, [3] + [1] * (len(tokens) - 1)),
        "tokenizer.ggml.merges": (ARRAY, STRING, merges),
        "tokenizer.ggml.bos_token_id": (U32, 0),
        "tokenizer.ggml.eos_token_id": (U32, 0),
        "tokenizer.ggml.add_bos_token": (BOOL, False),
    }


def _typed(value: Any) -> tuple:
    if isinstance(value, tuple):
        return (ARRAY, U64, value[1])
    if isinstance(value, list):
        return (ARRAY, *_typed(value[0])[:1], value)
    kinds = {bool: BOOL, int: U32, float: F32, str: STRING}
    return (kinds[type(value)], value)


def tensors_wanted(
    model: Gguf, beside: Path, fills: bool = True
) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes, in ggml's order, of all tensors that llama.cpp would load for `model`.

    Raises ValueError with llama.cpp's complaint.
    """
    wanted: dict[str, tuple[int, ...]] = {}
    complaints: list[str] = []

    @lib.llama_model_set_tensor_data_t
    def note(address: int, _: Any) -> None:
        tensor = abi.GgmlTensor.from_address(address)
        n_dimensions = max((i + 1 for i, n in enumerate(tensor.ne) if n > 1), default=1)
        wanted[tensor.name.decode()] = tuple(tensor.ne[:n_dimensions])
        if fills:
            ctypes.memset(tensor.data, 0, _n_bytes(tensor))

    hear = lib.llama_log_callback(
        lambda level, text, _: complaints.append(text.decode(errors="replace"))
    )
    header = beside.with_suffix(".header")
    model.write(header)
    base = abi.library("ggml-base")
    base.gguf_init_from_file.restype = ctypes.c_void_p
    base.gguf_init_from_file.argtypes = [ctypes.c_char_p, _GgufInitParams]
    heard, data = lib.llama_log_callback(), ctypes.c_void_p()
    lib.llama_log_get(ctypes.byref(heard), ctypes.byref(data))
    lib.llama_log_set(hear, None)
    try:
        metadata = base.gguf_init_from_file(str(header).encode(), _GgufInitParams(True, None))
        parameters = lib.llama_model_default_params()
        parameters.n_gpu_layers, parameters.load_mtp = 0, True
        made = lib.llama_model_init_from_user(metadata, note, None, parameters)
    finally:
        lib.llama_log_set(heard, data)
        header.unlink()
    if not made:
        told = [line for line in complaints if "error" in line]
        raise ValueError("".join(told or complaints[-5:]).strip())
    lib.llama_model_free(made)
    base.gguf_free(ctypes.c_void_p(metadata))
    return list(wanted.items())


def _n_bytes(tensor: abi.GgmlTensor) -> int:
    return int(np.prod(tensor.ne[:])) * (4 if tensor.type == TYPE_CODES["F32"] else 2)


class _GgufInitParams(ctypes.Structure):
    """`struct gguf_init_params`."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


NORMS = ("norm.weight", "_scale", ".scale", "ln1.weight")
"""Parts of the names of what multiplies activations one by one."""
GAIN = 1.5
"""Scale of a matrix: a larger one lets the next token depend on more than the last."""
POOL_BLOCKS, BLOCK = 1 << 16, 32


@functools.cache
def weights_pool() -> tuple[np.ndarray, np.ndarray]:
    """Normal numbers, float32 [POOL_BLOCKS * BLOCK], and the same in Q8_0, [POOL_BLOCKS, bytes]:
    weights are taken from them, because drawing and quantising each anew takes minutes."""
    normal = np.random.default_rng(0).standard_normal(POOL_BLOCKS * BLOCK, np.float32)
    packed = np.frombuffer(pack_weights(normal, "Q8_0"), np.uint8)
    return normal, packed.reshape(POOL_BLOCKS, -1)


def _weights(name: str, shape: tuple[int, ...], seed: int, tied: bool) -> tuple[str, bytes]:
    """Type and content of a tensor; `tied`: the embeddings are the output head, too."""
    begin = (zlib.crc32(name.encode()) + 7919 * seed) % (POOL_BLOCKS // 2)
    size = int(np.prod(shape))
    is_matrix = len(shape) > 1 and shape[0] % BLOCK == 0
    spread = _spread(name, shape[0], is_matrix, tied)
    is_quantised = is_matrix and not name.endswith(".bias")
    if is_quantised and not any(part in name for part in UNQUANTISED):
        blocks = _drawn(weights_pool()[1], begin, size // BLOCK)
        scales = blocks[:, :2].copy().view("<f2") * np.float16(spread)
        return "Q8_0", np.concatenate([scales.view(np.uint8), blocks[:, 2:]], axis=1).tobytes()
    values = _drawn(weights_pool()[0], BLOCK * begin, size)
    if "rope_freqs" in name or "rope_factors" in name:
        values = 1 + np.abs(values)
    elif "ssm_a" in name:
        values = -0.1 - np.abs(values)
    elif any(part in name for part in NORMS):
        values = 1 + 0.1 * values
    else:
        values = spread * values
    return "F32", values.astype("<f4").tobytes()


def _drawn(pool: np.ndarray, begin: int, n: int) -> np.ndarray:
    """`n` rows of a pool from `begin` on, again and again if it ends before. numpy's `resize` would
    copy all of the pool for each tensor."""
    rows = pool[begin : begin + n]
    return rows if len(rows) == n else np.resize(pool[begin:], (n, *pool.shape[1:]))


def _spread(name: str, row: int, is_matrix: bool, tied: bool) -> float:
    if "token_embd" in name:
        return 0.02 if tied else 1.0  # a large one answers every token with itself
    if name.endswith(".bias"):
        return 0.05  # large ones drown what depends on the text
    return GAIN / row**0.5 if is_matrix else 0.3
