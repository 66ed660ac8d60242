"""The heads that come with edgespec for fetched models, without those models."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import pytest

from edgespec.cli.invocation import own_draft
from edgespec.errors import ModelError
from edgespec.models import packaged
from edgespec.models.describe import describe
from edgespec.models.packaged import ShippedHead
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile, read_header
from edgespec_runtimes.gguf.file.heads import EMBEDDINGS, OUTPUT, head_shape

MOST_BYTES = 15_000_000
"""Size that a clone has room for."""


@dataclass(frozen=True)
class Shipped:
    model: str
    n_vocab: int
    n_guessed: int
    width: int
    layers: list[int]
    fingerprint: str

    @property
    def head(self) -> ShippedHead:
        head = packaged.models()[self.model].head
        assert head is not None
        return head

    @property
    def header(self) -> GgufFile:
        return read_header(self.head.path)


@pytest.fixture(
    params=[
        Shipped("smollm2", 49_152, 8192, 576, [2, 15, 27], "26138422a23a0060"),
        Shipped("qwen2.5-coder", 151_936, 2400, 1536, [2, 14, 25], "aa1129ea38356544"),
    ],
    ids=lambda shipped: shipped.model,
)
def shipped(request: pytest.FixtureRequest) -> Shipped:
    return request.param


def test_its_file_is_the_recorded_one(shipped: Shipped) -> None:
    head, content = shipped.head, shipped.head.path.read_bytes()
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (head.sha256, head.size_bytes)
    assert len(content) <= MOST_BYTES


def test_it_guesses_a_part_of_the_target_s_vocabulary(shipped: Shipped) -> None:
    header = shipped.header
    found = header.architecture, header.n_vocab, header.embedding_length
    assert found == ("eagle3", shipped.n_vocab, shipped.width)
    assert header.tensors_by_name[OUTPUT].shape == (shipped.width, shipped.n_guessed)
    assert header.tensors_by_name["d2t"].shape == (shipped.n_guessed,)
    assert describe(shipped.head.path).fingerprint == shipped.fingerprint


def test_it_reads_three_layers_and_takes_the_target_s_embeddings(shipped: Shipped) -> None:
    layers = shipped.header.metadata["eagle3.target_layers"]
    assert isinstance(layers, GgufArray) and list(layers.values()) == shipped.layers
    assert EMBEDDINGS not in shipped.header.tensors_by_name
    with pytest.raises(ModelError):
        head_shape(shipped.header)


@pytest.mark.usefixtures("own_cache_folder")
def test_it_guesses_for_the_fetched_model_without_a_flag(shipped: Shipped) -> None:
    assert own_draft(packaged.cache_path(shipped.model)) == shipped.head.path


def test_its_parameters_and_licence_are_on_record(shipped: Shipped) -> None:
    header, head = shipped.header, shipped.head
    weights = (tensor.shape for tensor in header.tensors if tensor.name != "d2t")
    assert head.parameters == sum(math.prod(shape) for shape in weights)
    assert header.metadata["general.license"] == head.licence.lower() == "apache-2.0"
