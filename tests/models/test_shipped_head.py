"""The head that comes with edgespec for SmolLM2-135M-Instruct, without that model."""

from __future__ import annotations

import hashlib
import math

import pytest

from edgespec.cli.invocation import own_draft
from edgespec.errors import ModelError
from edgespec.models import packaged
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile, read_header
from edgespec_runtimes.gguf.file.heads import EMBEDDINGS, OUTPUT, head_shape

HEAD = packaged.models()["smollm2"].head


@pytest.fixture(scope="module")
def header() -> GgufFile:
    assert HEAD is not None
    return read_header(HEAD.path)


def test_its_file_is_the_recorded_one() -> None:
    assert HEAD is not None
    content = HEAD.path.read_bytes()
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (HEAD.sha256, HEAD.size_bytes)


def test_it_guesses_a_part_of_smollm2_s_vocabulary(header: GgufFile) -> None:
    assert (header.architecture, header.n_vocab, header.embedding_length) == ("eagle3", 49152, 576)
    assert header.tensors_by_name[OUTPUT].shape == (576, 8192)
    assert header.tensors_by_name["d2t"].shape == (8192,)


def test_it_reads_three_layers_and_takes_the_target_s_embeddings(header: GgufFile) -> None:
    layers = header.metadata["eagle3.target_layers"]
    assert isinstance(layers, GgufArray) and list(layers.values()) == [2, 15, 27]
    assert EMBEDDINGS not in header.tensors_by_name
    with pytest.raises(ModelError, match="trained"):
        head_shape(header)


@pytest.mark.usefixtures("own_cache_folder")
def test_it_guesses_for_the_fetched_model_without_a_flag() -> None:
    assert HEAD is not None
    assert own_draft(packaged.cache_path("smollm2")) == HEAD.path


def test_its_parameters_and_licence_are_on_record(header: GgufFile) -> None:
    assert HEAD is not None
    weights = (tensor.shape for tensor in header.tensors if tensor.name != "d2t")
    assert HEAD.parameters == sum(math.prod(shape) for shape in weights)
    assert header.metadata["general.license"] == HEAD.licence.lower() == "apache-2.0"
