"""Description of a model without running it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from edgespec import registry
from edgespec.models.describe import describe, vocabulary_fingerprint
from edgespec.registry import ModelRequest
from edgespec.values import HeadDetails, ModelDetails, ModelInfo, OwnLayers
from edgespec_runtimes.gguf.file.details import details_of
from edgespec_runtimes.gguf.file.header import read_header
from gguf_files import (
    STRING,
    U32,
    Gguf,
    Tensor,
    borrowing,
    tiny_dflash,
    tiny_eagle3,
    tiny_llama,
)
from zoo_files import write_guessing


class MutePrepared:
    def __init__(self) -> None:
        self.info = ModelInfo("mute", "table", n_vocab=2, n_ctx=8, n_layers=1, size_bytes=0)
        self.is_closed = False

    def tokens(self) -> list[bytes]:
        return [b"a", b"b"]

    def close(self) -> None:
        self.is_closed = True


class MuteRuntime(registry.Runtime):
    """A runtime that has nothing to say about its models beyond what every one says."""

    name = "mute"

    def __init__(self) -> None:
        self.prepared = MutePrepared()

    def recognises(self, path: Path) -> bool:
        return True

    def prepare(self, request: ModelRequest) -> MutePrepared:
        return self.prepared


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MuteRuntime:
    runtime = MuteRuntime()
    entry = SimpleNamespace(name="mute", load=lambda: runtime)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return runtime


def details(model: Gguf, tmp_path: Path) -> ModelDetails:
    return details_of(read_header(model.write(tmp_path / "m.gguf")))


def test_fingerprints_tell_vocabularies_apart() -> None:
    same = vocabulary_fingerprint([b"a", b"bc"])
    assert vocabulary_fingerprint((b"a", b"bc")) == same
    others = ([b"ab", b"c"], [b"bc", b"a"], [b"a", b"bc", b""], [b"a"])
    assert same not in map(vocabulary_fingerprint, others)


def test_a_runtime_need_not_describe(mute: MuteRuntime, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"weights")
    described = describe(path)
    assert described.details == ModelDetails(format="mute")
    assert (described.info.name, described.size_bytes) == ("mute", 7)


def test_what_was_prepared_is_closed(mute: MuteRuntime, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"")
    describe(tmp_path / "model")
    assert mute.prepared.is_closed


def test_a_gguf_header_tells_the_shape(tmp_path: Path) -> None:
    found = details(tiny_llama(embedding=64, heads=4, kv_heads=2), tmp_path)
    assert (found.embedding_length, found.heads, found.kv_heads) == (64, 4, 2)
    assert found.context_length == 128
    assert found.format == "gguf"
    assert found.files == (tmp_path / "m.gguf",)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (tiny_eagle3(), HeadDetails((1, 2, 3), 64, ())),
        (tiny_eagle3(target_embedding=96, embedding=32), HeadDetails((1, 2, 3), 96, ())),
        (tiny_dflash(layers=(1, 5)), HeadDetails((1, 5), 64, ())),
        (
            borrowing(tiny_dflash(), tiny_llama(), "token_embd.weight", "output.weight"),
            HeadDetails((1, 2, 3), 64, ("token_embd.weight", "output.weight")),
        ),
    ],
    ids=["EAGLE-3", "of another width", "DFlash", "borrows"],
)
def test_a_head_tells_the_target_that_it_is_for(
    head: Gguf, expected: HeadDetails, tmp_path: Path
) -> None:
    assert details(head, tmp_path).head == expected


def test_a_head_that_borrows_is_described_without_its_target(tmp_path: Path) -> None:
    head = borrowing(tiny_eagle3(), tiny_llama(), "output.weight").write(tmp_path / "head.gguf")
    target = tiny_llama().write(tmp_path / "target.gguf")
    described = describe(head)
    assert (described.info.architecture, described.info.n_layers) == ("eagle3", 1)
    assert described.info.n_vocab == 297
    assert described.fingerprint == describe(target).fingerprint
    assert describe(target).details.head is None


@pytest.mark.parametrize(
    ("architecture", "obstacle"),
    [("glm4moe", None), ("step35", "those of the architecture step35 are not run")],
)
def test_layers_that_guess_for_their_model_are_told(
    architecture: str, obstacle: str | None, tmp_path: Path
) -> None:
    header = read_header(write_guessing(tmp_path / "m.gguf", architecture))
    assert details_of(header).own_layers == OwnLayers(1, obstacle)
    plain = read_header(tiny_llama().write(tmp_path / "plain.gguf"))
    assert details_of(plain).own_layers is None


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_the_quantisation_is_that_of_most_weights(tmp_path: Path, kind: str) -> None:
    assert details(tiny_llama(kind=kind), tmp_path).quantization == kind


def test_parameters_are_counted(tmp_path: Path) -> None:
    model = tiny_llama(embedding=64, layers=1, heads=2, kv_heads=1, head_size=32, ffn=96)
    vectors, attention, ffn = 3 * 64, 64 * (64 + 32 + 32 + 64), 3 * 64 * 96
    assert details(model, tmp_path).parameters == 297 * 64 + vectors + attention + ffn


def test_licence_and_origin_are_told_where_they_are_given(tmp_path: Path) -> None:
    model = tiny_llama()
    assert (details(model, tmp_path).licence, details(model, tmp_path).equals) == (None, None)
    model.metadata["general.license"] = (STRING, "mit")
    model.metadata["edgespec.enlarged_from"] = (STRING, "tiny")
    found = details(model, tmp_path)
    assert (found.licence, found.equals) == ("mit", "tiny")


def test_a_mixture_says_what_a_token_needs_of_it(tmp_path: Path) -> None:
    model = tiny_llama()
    model.metadata |= {"llama.expert_count": (U32, 4), "llama.expert_used_count": (U32, 1)}
    model.tensors.append(Tensor("blk.0.ffn_up_exps.weight", (64, 96, 4), 0, bytes(4 * 64 * 96 * 4)))
    header = read_header(model.write(tmp_path / "m.gguf"))
    experts = details_of(header).experts
    assert experts is not None
    assert (experts.experts, experts.used, experts.nbytes) == (4, 1, 4 * 64 * 96 * 4)
    assert experts.token_bytes == header.weight_bytes - 3 * 64 * 96 * 4
