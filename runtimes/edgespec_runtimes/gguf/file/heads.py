"""Validates heads, which guess from a target's hidden states: GGUF architectures of their own, and
prediction layers (multi-token prediction, MTP) in a target's file.

Refuses heads on which llama.cpp would crash, and unsupported ones. Reads the header and one small
table of token ids. llama.cpp's graphs of prediction layers abort if a tensor is missing, so those
that they require are listed here and in the table of architectures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgespec.errors import ModelError, setting
from edgespec_runtimes.gguf.file.architectures import HEAD, Trait, architecture, has, purpose_of
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile, TensorEntry, ValueType
from edgespec_runtimes.gguf.file.layout import EMBEDDINGS, OUTPUT

EAGLE3, DFLASH = "eagle3", "dflash"
N_FUSED = 3
"""Number of the target's layers that an EAGLE-3 head fuses."""
MASK_TOKEN = "tokenizer.ggml.mask_token_id"
BLOCK_SIZE = 16
"""Default block size of a DFlash head in tokens, as in llama.cpp."""
MAX_BLOCK_SIZE = 256
_SELECTOR = "selector_hidden.weight"
"""A tensor that only DFlash2 has."""
_CHAIN = "markov_w1.weight"
"""A tensor that only DSpark has: llama.cpp corrects each guess by its most probable one before."""
N_LAYERS = "nextn_predict_layers"
_ALWAYS_NEEDED = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
_DEEPSEEK4 = "blk.0.hc_attn_fn.weight"
"""A tensor of DSpark for DeepSeek-V4."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The block of a DFlash head: the last token, followed by mask tokens."""

    size: int
    """Tokens in the block, including the last token of the text."""
    mask_token: int
    is_causal: bool
    """True if attention within the block is causal."""
    first_row: int = 1
    """Row of the first guess: 0 where the last token itself guesses."""
    n_candidates: int = 0
    """Candidates per position, which DFlash2's selector scores for each candidate of the previous
    position; 0 without a selector."""

    @property
    def n_guesses(self) -> int:
        return self.size - self.first_row


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The hidden states and tensors of a target that a head uses."""

    layers: tuple[int, ...]
    """Layers of the target whose inputs the head fuses."""
    n_values: int
    """Size of each input."""
    embeddings: TensorEntry | None = None
    """The target's embeddings, if the head has none."""
    output: TensorEntry | None = None
    """The target's output matrix, if the head has none."""
    block: BlockShape | None = None
    """None for a head that guesses one token at a time."""
    own: tuple[TensorEntry, ...] = ()
    """Tensors of a target's own prediction layer (MTP) in the target's file."""


def is_head(header: GgufFile) -> bool:
    """True if the model is a head that this runtime supports as a draft."""
    return purpose_of(header) is HEAD


def missing_matrices(header: GgufFile) -> tuple[str, ...]:
    """Names of the matrices, embeddings or output, that a head takes from its target."""
    found = {EMBEDDINGS: EMBEDDINGS, OUTPUT: _output_name(header)}
    return tuple(name for name, own in found.items() if own not in header.tensors_by_name)


def head_shape(header: GgufFile, target: GgufFile | None = None) -> HeadShape:
    """Tensors and states of its target that a head uses. Raises ModelError for an unusable head."""
    shape = read_states(header)
    own, output_name = header.tensors_by_name, _output_name(header)
    embeddings = None if EMBEDDINGS in own else _lent(header, target, EMBEDDINGS)
    output = None if output_name in own else _lent(header, target, OUTPUT)
    _check_tokens(header, output or own[output_name])
    return replace(shape, embeddings=embeddings, output=output)


def read_states(header: GgufFile) -> HeadShape:
    """The hidden states that a head reads, without missing matrices. Raises ModelError."""
    layers = _target_layers(header)
    block, n_values = None, header.embedding_length
    if header.architecture == DFLASH:
        block = _block_shape(header)
    elif header.n_layers != 1:
        raise ModelError(
            f"{header.path} has {header.n_layers} layers, and an EAGLE-3 head has one: name another"
        )
    else:
        n_values = header.integer(header.key("target_hidden_size"))
    return HeadShape(layers, n_values, block=block)


def _output_name(header: GgufFile) -> str:
    """Name of the head's output tensor; DFlash uses the embeddings as output."""
    is_tied = OUTPUT not in header.tensors_by_name and header.architecture == DFLASH
    return EMBEDDINGS if is_tied else OUTPUT


def _target_layers(header: GgufFile) -> tuple[int, ...]:
    layers = header.metadata.get(header.key("target_layers"))
    n_wanted = N_FUSED if header.architecture == EAGLE3 else None
    if (
        isinstance(layers, GgufArray)
        and layers.kind in (ValueType.INT32, ValueType.UINT32)
        and (len(layers) == n_wanted if n_wanted else len(layers))
    ):
        return tuple(int(layer) for layer in layers.values())
    wanted = f"{n_wanted} " if n_wanted else ""
    raise ModelError(
        f"{header.path} names no {wanted}target_layers: convert the head again with "
        "llama.cpp's convert_hf_to_gguf.py and --target-model-dir"
    )


def _block_shape(header: GgufFile) -> BlockShape:
    """The block of a DFlash head.

    Raises ModelError for other heads of the same architecture, and for values on which llama.cpp's
    graph would crash.
    """
    is_chain = _CHAIN in header.tensors_by_name
    if _DEEPSEEK4 in header.tensors_by_name:
        raise ModelError(
            f"{header.path} is a head of the kind DSpark of DeepSeek-V4, which edgespec does not "
            "run: name another head, or a whole model of the target's family"
        )
    if MASK_TOKEN not in header.metadata:
        raise ModelError(
            f"{header.path} has no mask token ({MASK_TOKEN}), which a DFlash head puts in the "
            "places of its guesses: convert it again with a newer convert_hf_to_gguf.py"
        )
    mask_token = header.integer(MASK_TOKEN)
    size = header.integer(header.key("block_size"), None if is_chain else BLOCK_SIZE)
    key_size, value_size = (
        header.integer(header.key(f"attention.{name}_length"), 0) for name in ("key", "value")
    )
    counts = (header.key(f"attention.head_count{suffix}") for suffix in ("", "_kv"))
    bases = [tensor for tensor in header.tensors if tensor.name.endswith("_conv_base")]
    n_candidates = 0
    if _SELECTOR in header.tensors_by_name:
        n_candidates = header.integer(header.key("selector_top_k"))
    wrong = ""
    if not 0 <= n_candidates <= header.n_vocab:
        wrong = f"it has {n_candidates} candidates of {header.n_vocab} tokens"
    elif any(tensor.type.name != "F32" for tensor in bases):
        wrong = "its convolutions are not in F32"
    elif not 1 < size <= MAX_BLOCK_SIZE:
        wrong = f"its blocks have {size} tokens, not 2 to {MAX_BLOCK_SIZE}"
    elif not 0 <= mask_token < header.n_vocab:
        wrong = f"its mask is token {mask_token} of {header.n_vocab}"
    elif key_size != value_size:
        wrong = f"its keys have {key_size} values and its values {value_size}"
    elif any(isinstance(header.metadata.get(count), GgufArray) for count in counts):
        wrong = "its layers have different numbers of heads"
    if wrong:
        raise ModelError(f"{header.path} is damaged: {wrong}; download or convert it again")
    is_causal = header.metadata.get(header.key("attention.causal")) is True
    begins = header.metadata.get(header.key("sample_from_anchor"), True) is True
    return BlockShape(size, mask_token, is_causal, 1 - (is_chain and begins), n_candidates)


def _lent(header: GgufFile, target: GgufFile | None, name: str) -> TensorEntry:
    """The target's matrix `name`, for a head without one. Raises ModelError."""
    if target is None:
        raise ModelError(
            f"{header.path} has no {name} and takes its target's: name the model that it was "
            f"trained for with {setting.model}"
        )
    lent = target.tensors_by_name
    found = lent.get(name) or lent.get(EMBEDDINGS)
    if name == OUTPUT and has(target, Trait.NO_OUTPUT):
        found = None
    wanted = (header.embedding_length, header.n_vocab)
    if found is None or found.shape != wanted:
        shape = " x ".join(map(str, found.shape)) if found else "none"
        raise ModelError(
            f"{header.path} has no {name} and takes its target's, of {wanted[0]} x {wanted[1]}; "
            f"{target.path} has {shape}: name a head that was trained for this model, or another "
            "draft"
        )
    return found


def _check_tokens(header: GgufFile, output: TensorEntry) -> None:
    """Raise ModelError unless each output row has a token id, at which llama.cpp writes its
    logit."""
    n_rows, n_vocab = output.shape[-1], header.n_vocab
    table = header.tensors_by_name.get("d2t")
    if table is None:
        fits = n_rows == n_vocab
    elif table.type.name != "I64" or table.shape != (n_rows,):
        fits = False
    else:
        with header.paths[table.file_index].open("rb") as file:
            file.seek(table.offset)
            tokens = np.frombuffer(file.read(table.nbytes), "<i8")
        fits = 0 <= int(tokens.min()) <= int(tokens.max()) < n_vocab
    if not fits:
        raise ModelError(
            f"{header.path} is damaged: its output has {n_rows} rows, and d2t does not give each "
            f"one of {n_vocab} tokens; download or convert it again"
        )


def has_layers(header: GgufFile) -> bool:
    """True if the file has tensors of prediction layers; some files only have their number."""
    return any(".nextn.eh_proj." in name for name in header.tensors_by_name)


def obstacle(header: GgufFile) -> str | None:
    """Reason why the file's prediction layers cannot be used; None if they can."""
    n_layers, known = header.integer(header.key(N_LAYERS), 0), architecture(header.architecture)
    if not n_layers or not has_layers(header):
        return "its file has none"
    if known.own_layer is None:
        return f"those of the architecture {header.architecture} are not run"
    if n_layers != 1:
        return f"it has {n_layers}, and one is run"
    unfit = header.key(known.own_layer_without)
    if unfit in header.metadata:
        return f"llama.cpp does not compute them with {unfit}"
    names = (*_ALWAYS_NEEDED, *known.own_layer)
    wanted = [EMBEDDINGS, *(f"{_prefix(header)}{name}.weight" for name in names)]
    missing = [name for name in wanted if name not in header.tensors_by_name]
    return f"{missing[0]} is missing" if missing else None


def own_shape(header: GgufFile) -> HeadShape:
    """Tensors and states that a target's prediction layer uses. Raises ModelError if unusable."""
    if reason := obstacle(header):
        raise ModelError(
            f"the layers for guessing (MTP) of {header.path} cannot be used ({reason}): name "
            "another draft"
        )
    prefix, tensors = _prefix(header), header.tensors_by_name
    embeddings = tensors.get(f"{prefix}nextn.embed_tokens.weight") or tensors[EMBEDDINGS]
    outputs = (f"{prefix}nextn.shared_head_head.weight", OUTPUT, EMBEDDINGS)
    output = next(tensors[name] for name in outputs if name in tensors)
    apart = {EMBEDDINGS, OUTPUT, embeddings.name, output.name}
    own = [
        tensor
        for tensor in header.tensors
        if (tensor.name.startswith(prefix) or not tensor.name.startswith("blk."))
        and tensor.name not in apart
    ]
    layers = (header.n_layers - 1,)  # the input of the layer after the target's last one
    return HeadShape(layers, header.embedding_length, embeddings, output, own=tuple(own))


def skipped(header: GgufFile) -> frozenset[str]:
    """Names of the prediction layer's tensors, which are not loaded with the target."""
    if obstacle(header):
        return frozenset()
    return frozenset(t.name for t in own_shape(header).own if t.name.startswith(_prefix(header)))


def _prefix(header: GgufFile) -> str:
    return f"blk.{header.n_layers - 1}."
