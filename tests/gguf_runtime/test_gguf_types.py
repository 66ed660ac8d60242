"""Files as they come: any quantisation, and models split over several files, page alike."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from test_gguf_model import open_paged, request

from edgespec.models.embedded import embedded_pair
from edgespec.ports import PassPart
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.kernels.invariant_kernels import HALF
from edgespec_runtimes.gguf.llama import ggml
from edgespec_runtimes.gguf.weights.packing import multiplied_types, packed_matrices
from one_tree import ROOT, OneTree, line
from paging_contract import load_paged, one_by_one
from port_calls import evaluate, prefill
from reference import LlamaCpp, quantise

PAIR = embedded_pair()
NAMES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M"),
    *("Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"),
)
N_TOKENS = 6


def assert_pages_like_llama_cpp(path: Path) -> None:
    """The reference is resident and packed for the CPU, or mapped if packing is not invariant. Half
    precision rounds as llama.cpp does in batches, which is otherwise than row by row. Where only
    some of the matrices may be packed, as of Q2_K with AVX-512, llama.cpp rounds the others
    otherwise."""
    header = read_header(path)
    packed = {tensor.name for tensor in packed_matrices(header)}
    shapes = [(t.type.code, *t.shape) for t in header.tensors if t.name not in packed]
    is_mixed = any(len(one) == 3 and ggml.packing_buffer_type(*one) for one in shapes)
    rounding = 1e-4 if packed and is_mixed else 0.0
    in_batches = not multiplied_types(header).isdisjoint(HALF)
    with LlamaCpp(path, 256, packed=bool(packed_matrices(header))) as llama_cpp:
        tokens = list(range(300, 300 + N_TOKENS))
        if in_batches:
            expected = llama_cpp.decode_all(tokens)
        else:
            expected = np.stack([llama_cpp.decode([token]) for token in tokens])
    with closing(open_paged(path)) as model:
        assert model.paging().streamed_bytes > 0
        assert np.allclose(one_by_one(model, tokens), expected, rtol=0, atol=rounding)
        assert model.paging().bytes_read > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_quantisation_pages_bit_for_bit(name: str, tmp_path: Path) -> None:
    assert_pages_like_llama_cpp(quantised(name, tmp_path))


def quantised(name: str, folder: Path, source: Path = PAIR.target) -> Path:
    """The embedded target, or another model, in another quantisation."""
    path = folder / f"{name}.gguf"
    quantise(source, path, name)
    return path


def test_a_split_model_pages_bit_for_bit(tmp_path: Path) -> None:
    """Segments whose tensors lie in different files are read like any other."""
    write_split(PAIR.target, tmp_path / "split.gguf", tensors_per_file=13)
    (first,) = tmp_path.glob("split-00001-of-*.gguf")
    assert len(read_header(first).paths) > 3
    assert_pages_like_llama_cpp(first)


def write_split(source: Path, out: Path, tensors_per_file: int) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "llama", split_max_tensors=tensors_per_file)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        subtype = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=subtype)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("name", "n_tokens"),
    [
        ("F16", 60),
        ("Q4_0", 50),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("Q8_0", 60), ("Q4_K_M", 50), ("IQ4_NL", 50))
        ),
    ],
)
def test_a_prompt_beside_trees_is_the_prompt_alone(
    name: str, n_tokens: int, tmp_path: Path
) -> None:
    tokens = [300 + 7 * n % 150 for n in range(n_tokens + 1)]
    wanted = replace(request(quantised(name, tmp_path), n_slots=2), batch_size=128)
    with closing(load_paged(runtime.prepare(wanted), 0.5)) as model:
        prefill(model, tokens[:-1])
        alone = evaluate(model, OneTree(tokens[-1]), [ROOT])
        model.truncate(0)
        prefill(model, tokens[:20], slot=1)
        tree, nodes = line(tokens[20:30])
        end = OneTree(tokens[-1])
        first = model.evaluate([PassPart(0, end, (), tokens[:7]), PassPart(1, tree, nodes)])
        model.commit(tree, nodes[:3], slot=1)
        tree, nodes = line(tokens[40:50])
        rows, _ = model.evaluate([PassPart(0, end, [ROOT], tokens[7:-1]), PassPart(1, tree, nodes)])
        assert len(first[0]) == 0
        assert np.array_equal(rows, alone)


@pytest.mark.costly
@pytest.mark.parametrize(
    "ways",
    [
        {"n_slots": 2, "ctx_size": 100, "batch_size": None},
        {"n_slots": 2, "batch_size": 100},
        {"batch_size": 7},
    ],
)
def test_a_prompt_of_k_quants_rounds_alike_in_small_batches(
    ways: dict[str, Any], tmp_path: Path
) -> None:
    """They had been computed row by row, without a note: another text, in twice the time."""
    tokens = [300 + 7 * n % 150 for n in range(81)]
    usual = replace(request(quantised("Q4_K_M", tmp_path)), ctx_size=256, batch_size=128)
    seen = []
    for wanted in (usual, replace(usual, **ways)):
        with closing(runtime.prepare(wanted).load(None)) as model:
            prefill(model, tokens[:-1])
            seen.append(evaluate(model, OneTree(tokens[-1]), [ROOT]))
    assert np.array_equal(*seen)
