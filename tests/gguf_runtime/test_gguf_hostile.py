"""Damaged and hostile files get one clear ModelError: no traceback, no hang, no dead process."""

from __future__ import annotations

import json
import math
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import ModelError
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.validation import validate
from gguf_files import ARRAY, F32, I32, STRING, U32, Gguf, Tensor, tiny_llama
from port_models import model_request
from sentences import hold_sentence, refuses
from zoo_files import random_model
from zoo_species import Species

SURVIVAL = Path(__file__).with_name("gguf_survival.py")
N_MUTATIONS = 240
SIGNALS = "SIG"


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        validate(read_header(path))
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500
    return message


def test_the_model_that_the_tests_damage_is_sound(tmp_path: Path) -> None:
    validate(read_header(tiny_llama().write(tmp_path / "m.gguf")))


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    hold_sentence(refusal(tmp_path / "missing.gguf"))
    hold_sentence(refusal(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    hold_sentence(refusal(tmp_path / "pipe"))


def test_an_architecture_is_a_name_that_can_be_shown(tmp_path: Path) -> None:
    model = tiny_llama()
    model.metadata["general.architecture"] = (STRING, "\n\x1b[31m")
    hold_sentence(refusal(model.write(tmp_path / "m.gguf")))
    for name in ("x" * 10_000, "é" * 64):
        model.metadata["general.architecture"] = (STRING, name)
        assert len(refusal(model.write(tmp_path / "m.gguf"))) < 300


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may read every file")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tiny_llama().write(tmp_path / "m.gguf")
    path.chmod(0)
    assert "Permission denied" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GG",
        b"PK\3\4" + bytes(100),
        b"GGUF",
        b"GGUF\0\0\0\3" + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 62) + bytes(99),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0) + bytes(99),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60) + bytes(99),
        b"GGUF" + struct.pack("<IQQQcIQ", 3, 0, 1, 1, b"k", 99, 0),
        b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 9, 0),
        b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 8, 1 << 40),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    ],
)
def test_a_wrong_beginning(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    hold_sentence(refusal(path))


def test_a_file_cut_short_says_what_is_missing(tmp_path: Path) -> None:
    path = tiny_llama().write(tmp_path / "m.gguf")
    size = path.stat().st_size
    os.truncate(path, size - 1000)
    assert f"1000 of {size} bytes are missing" in refusal(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = tiny_llama(layers=1).content()
    path = tmp_path / "m.gguf"
    for size in range(0, len(content), 199):
        path.write_bytes(content[:size])
        refusal(path)


def tensor(which: str, /, **changes: object) -> Callable[[Gguf], None]:
    def change(model: Gguf) -> None:
        changed = model.tensor(which)
        for attribute, value in changes.items():
            setattr(changed, attribute, value)

    return change


def metadata(key: str, *value: object) -> Callable[[Gguf], None]:
    return lambda model: model.metadata.update({key: value})


def without(key: str) -> Callable[[Gguf], None]:
    return lambda model: model.metadata.pop(key) and None


def tokens(change: Callable[[list[str]], list[str]]) -> Callable[[Gguf], None]:
    def apply(model: Gguf) -> None:
        kind, element, texts = model.metadata["tokenizer.ggml.tokens"]
        model.metadata["tokenizer.ggml.tokens"] = (kind, element, change(list(texts)))

    return apply


NORM, QUERY = "blk.0.attn_norm.weight", "blk.0.attn_q.weight"
DAMAGES = [
    (tokens(lambda _: [""] * ((1 << 20) + 1)), "1,048,577 tokens"),
    (tensor(QUERY, shape=(64, 0)), "impossible shape"),
    (tensor(QUERY, shape=(64, 1 << 62)), f"impossible shape [64, {1 << 62}] in "),
    (tensor(QUERY, shape=(1 << 63, 1 << 63)), "impossible shape"),
    (tensor(QUERY, shape=(64, 2, 2, 8, 4)), "5 dimensions"),
    (tensor(QUERY, code=4), "tensor type 4"),
    (tensor(QUERY, code=1 << 31), "tensor type"),
    (tensor(QUERY, offset=(1 << 64) - 32), "cut short"),
    (tensor(NORM, code=1, data=bytes(128)), "must be F32"),
    (tensor(QUERY, code=26, data=bytes(64 * 128 * 4)), "no kernel"),
    (metadata("general.alignment", U32, 0), "power of two"),
    (metadata("general.alignment", U32, 48), "power of two"),
    (metadata("general.alignment", F32, 32.5), "power of two"),
    (without("general.architecture"), "general.architecture"),
    (metadata("general.architecture", U32, 1), "must be a string"),
    (metadata("general.architecture", STRING, ""), "is no name but ''"),
    (without("llama.block_count"), "llama.block_count"),
    (metadata("llama.block_count", STRING, "2"), "must be an integer"),
    (metadata("llama.block_count", U32, 0), "block_count is 0"),
    (metadata("llama.block_count", U32, 513), "block_count is 513"),
    (metadata("llama.nextn_predict_layers", U32, 2), "nextn_predict_layers"),
    (metadata("llama.context_length", U32, 0), "context_length"),
    (metadata("llama.attention.head_count", U32, 0), "0 heads"),
    (metadata("llama.attention.head_count", ARRAY, U32, [4]), "each of 2 layers"),
    (metadata("llama.attention.head_count_kv", U32, 0), "0 KV heads"),
    (metadata("llama.attention.head_count_kv", U32, 3), "3 KV heads"),
    (metadata("llama.attention.head_count_kv", ARRAY, U32, [2, 4]), "rows for 4 heads"),
    (metadata("llama.attention.head_count_kv", ARRAY, I32, [2, -1]), "share -1 KV heads"),
    (metadata("llama.rope.dimension_count", U32, 31), "odd"),
    (metadata("llama.rope.scaling.type", STRING, "spiral"), "spiral"),
    (metadata("llama.attention.layer_norm_rms_epsilon", F32, -1.0), "epsilon is -1"),
    (metadata("llama.attention.layer_norm_rms_epsilon", F32, math.nan), "epsilon is nan"),
    (metadata("llama.expert_count", U32, 2000), "expert_count"),
    (metadata("llama.expert_used_count", U32, 2), "2 of 0 experts"),
    (metadata("llama.expert_group_count", U32, 2), "groups"),
    (metadata("tokenizer.ggml.model", STRING, "none"), "not supported"),
    (metadata("tokenizer.ggml.tokens", ARRAY, I32, [1] * 297), "not an array of strings"),
    (tokens(lambda texts: [*texts[:-1], texts[3]]), "twice"),
    (tokens(lambda texts: ["", *texts[1:-1], "[EMPTY_0]"]), "twice"),
    (metadata("tokenizer.ggml.model", STRING, "llama"), "no token for the byte 0x00"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGES)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Gguf], None], says: str) -> None:
    model = tiny_llama()
    damage(model)
    assert says in refusal(model.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, name) for name in ("ffn_down_exps", "ffn_up_shexp", "ffn_down_shexp")),
        ("ffn_gate_up_exps", "ffn_gate_exps"),
    ],
)
def test_experts_that_llama_cpp_computes_with_unasked_are_all_there(
    name: str, told: str, tmp_path: Path
) -> None:
    model = random_model(tmp_path / "m.gguf", Species("hy_v3", True))
    validate(read_header(model.write(tmp_path / "m.gguf")))
    model.tensors = [one for one in model.tensors if one.name != f"blk.2.{name}.weight"]
    assert f"layer 2 has no {told}" in refusal(model.write(tmp_path / "m.gguf"))


LEFT_TO_LLAMA_CPP = [
    metadata("llama.attention.value_length", U32, 16),
    metadata("llama.rope.dimension_count", U32, 16),
    metadata("llama.attention.head_count_kv", I32, 2),
    tensor(QUERY, shape=(24, 8)),
    tensor(QUERY, offset=1),
    tensor(QUERY, name="x" * 64),
    tensor(QUERY, name="token_embd.weight"),
    tensor(QUERY, name="a\0b"),
    metadata("", U32, 1),
    tokens(lambda texts: [*texts, "one more"]),
    metadata("tokenizer.ggml.token_type", ARRAY, I32, [1] * 296),
    metadata("tokenizer.ggml.token_type", ARRAY, I32, [6] * 297),
    metadata("tokenizer.ggml.scores", F32, 0.0),
]


@pytest.mark.parametrize("damage", LEFT_TO_LLAMA_CPP)
def test_damage_that_llama_cpp_sees_is_refused(
    tmp_path: Path, damage: Callable[[Gguf], None]
) -> None:
    model = tiny_llama()
    damage(model)
    with refuses(ModelError):
        runtime.prepare(model_request(model.write(tmp_path / "m.gguf"))).load(None)


@given(st.binary(max_size=200))
def test_no_content_does_more_than_raise_a_model_error(
    tmp_path_factory: pytest.TempPathFactory, rest: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + rest)
    refusal(path)


def mutations(model: Gguf) -> list[list[tuple[int, str]]]:
    """Patches of the header: flipped bits, and words with the values that arithmetic trips over."""
    choose = random.Random(20)
    header = model.header()
    words = [0, 1, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
    found = []
    for _ in range(N_MUTATIONS // 2):
        position = choose.randrange(4, len(header))
        flipped = header[position] ^ 1 << choose.randrange(8)
        found.append([(position, bytes([flipped]).hex())])
        position = choose.randrange(4, len(header) - 4)
        found.append([(position, struct.pack("<I", choose.choice(words)).hex())])
    return found


@pytest.mark.slow
def test_no_flipped_header_byte_ends_the_process(tmp_path: Path) -> None:
    """Each damaged file goes through validation, loading, tokenizing and decoding in a child."""
    pytest.importorskip("llama_cpp")
    model = tiny_llama(layers=1)
    sound = model.write(tmp_path / "m.gguf")
    patches = [[], *mutations(model)]
    ended = subprocess.run(
        [sys.executable, SURVIVAL, sound],
        input="".join(f"{json.dumps(patch)}\n" for patch in patches),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout.split("\n")[:-1]
    assert len(ended) == len(patches)
    assert ended[0] == "answered"
    died = {
        json.dumps(patch): end
        for patch, end in zip(patches, ended, strict=True)
        if end.startswith((SIGNALS, "exit"))
    }
    assert not died
    assert ended.count("refused") > N_MUTATIONS // 4


def test_a_tensor_of_its_own_type_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    """Q8_K holds activations inside llama.cpp; as weights it has no kernel."""
    model = tiny_llama(embedding=256, layers=1)
    model.tensors.append(Tensor("output.weight", (256, 297), 15, bytes(292 * 297)))
    hold_sentence(refusal(model.write(tmp_path / "m.gguf")))
