"""Small graphs that would take all memory or time are refused in one sentence, and so is damage
of any kind.

Plans are asked for on the command line of a process whose address space is limited, and which tells
its peak.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import numpy as np
import onnx
from onnx import helper, numpy_helper

import genai_models
from onnx_files import edit_graph, write_llama

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="address spaces are limited on Linux"),
]

Change = Callable[[onnx.ModelProto], None]
MIB = 1 << 20
MAX_PEAK = 500 * MIB
ADDRESS_SPACE = 2048 * MIB
"""Libraries of onnxruntime with CUDA map more than 1 GiB that they never touch."""
WRONG_MODEL = 3
"""Exit code for a model that cannot be used."""
FAILED = 1
"""Exit code where onnxruntime accepts a graph and cannot compute it."""
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 1 << 31, 1 << 40, -(1 << 40), (1 << 63) - 1)
"""Numbers that a changed graph has in places of others."""
PROGRESS = "planning ..."

N_MUTATIONS, N_AT_ONCE = 2000, 200
"""A process plans so many at once, and its peak is that of them all."""

CHILD = """
import contextlib, io, json, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from edgespec.cli.command_line import main
from edgespec.memory import process
for line in sys.stdin:
    path, said, plan = Path(line.strip()), io.StringIO(), io.StringIO()
    arguments = ["-m", str(path), "-c", "64", "--memory-budget", "1GiB"]
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(plan):
        exit_code = main(["plan", *arguments])
        if not exit_code and {runs}:
            said.truncate(said.seek(0))
            exit_code = main(["generate", *arguments, "-p", "The", "-n", "3", "--quiet"])
    peak = process.peak_rss_bytes()  # that of getrusage is the parent's, if it had more
    print(json.dumps([path.name, exit_code, said.getvalue(), peak]), flush=True)
"""


def planned(folders: list[Path], runs: bool = False) -> Iterator[tuple[str, int, list[str], int]]:
    """Name, exit code, lines of messages, and the process's peak so far of planning each folder,
    and if `runs` of writing a text where there is a plan.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(limit=ADDRESS_SPACE, runs=runs)],
        input="\n".join(map(str, folders)),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    ended_at = [*folders, None][len(answers)]
    assert done.returncode == 0 and ended_at is None, (ended_at, done.stderr[-2000:])
    for name, exit_code, said, peak in answers:
        yield name, exit_code, [line for line in said.splitlines() if line != PROGRESS], peak


def wide_logits(width: int) -> Change:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = width

    return edit


def past_heads(heads: int) -> Change:
    def edit(model: onnx.ModelProto) -> None:
        for value in model.graph.input:
            if value.name.startswith("past"):
                value.type.tensor_type.shape.dim[1].dim_value = heads

    return edit


def nested_functions(*called: str) -> Change:
    """Functions f0, f1 and so on, each of which calls another one twice; the first is used."""

    def edit(model: onnx.ModelProto) -> None:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bomb", 1)]
        for i, op in enumerate(called):
            domain = "" if op == "Neg" else "bomb"
            nodes = [
                helper.make_node(op, [source], [result], domain=domain)
                for source, result in ("xt", "ty")
            ]
            model.functions.append(
                helper.make_function("bomb", f"f{i}", ["x"], ["y"], nodes, opsets)
            )
        model.opset_import.append(helper.make_opsetid("bomb", 1))
        name = model.graph.initializer[0].name
        model.graph.node.insert(0, helper.make_node("f0", [name], ["unused"], domain="bomb"))

    return edit


def in_a_row(depth: int) -> list[str]:
    return [*(f"f{i}" for i in range(1, depth)), "Neg"]


def foreign_operator_without_inputs(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("foreign", 1))
    node = onnx.NodeProto(op_type="Constant", domain="foreign", output=["unused"])
    model.graph.node.insert(0, node)


def huge_constant(model: onnx.ModelProto) -> None:
    """onnxruntime would compute it while it loads."""
    shape = numpy_helper.from_array(np.array([1 << 16, 1 << 16], np.int64), "huge.shape")
    model.graph.initializer.append(shape)
    embedding = next(node for node in model.graph.node if node.op_type == "Gather")
    nodes = [
        helper.make_node("ConstantOfShape", ["huge.shape"], ["huge"]),
        helper.make_node("ReduceMax", ["huge"], ["huge.max"], keepdims=0),
        helper.make_node("Add", ["embedded", "huge.max"], list(embedding.output)),
    ]
    embedding.output[0] = "embedded"
    place = list(model.graph.node).index(embedding) + 1
    for node in reversed(nodes):
        model.graph.node.insert(place, node)


BOMBS: dict[str, tuple[Change, str]] = {
    "logits-2-31": (wide_logits(1 << 31), "logits are those of 2,147,483,648 tokens"),
    "logits-wider": (wide_logits(301), "declares logits of 301 tokens, and computes 300"),
    "past-negative": (past_heads(-2), "its past must be"),
    "past-huge": (past_heads(1 << 40), "is damaged"),
    "functions-30": (nested_functions(*in_a_row(30)), "call each other so often"),
    "functions-200": (nested_functions(*in_a_row(200)), "calls itself, or is called through more"),
    "function-recursive": (nested_functions("f0"), "calls itself"),
    "foreign": (foreign_operator_without_inputs, "Constant has no input"),
    "constant": (huge_constant, "computes a value of 16,384 MiB"),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_llama(folder, layers=1, hidden=32, vocab=300)  # mutations then hit the graph
    return folder


@pytest.mark.slow
def test_a_graph_that_would_take_all_memory_is_refused_in_one_line(
    tiny: Path, tmp_path: Path
) -> None:
    folders = [shutil.copytree(tiny, tmp_path / name) for name in BOMBS]
    for folder in folders:
        edit_graph(folder / "model.onnx", BOMBS[folder.name][0])
    for name, exit_code, errors, peak in planned(folders):
        assert exit_code == WRONG_MODEL, (name, errors)
        assert len(errors) == 1 and BOMBS[name][1] in errors[0] and len(errors[0]) < 500, name
        assert peak < MAX_PEAK, name


def changed_bytes(whole: bytes, draw: random.Random) -> bytes:
    """The file with a few bytes changed, removed, repeated or taken from elsewhere in it."""
    data = bytearray(whole)
    for _ in range(draw.choice((1, 1, 2, 5))):
        place, length = draw.randrange(len(whole) - 64), draw.choice((1, 1, 2, 8, 40))
        other = draw.randrange(len(whole) - 64)
        how = draw.randrange(4)
        if how == 0:
            data[place : place + 1] = bytes([draw.randrange(256)])
        elif how == 1:
            del data[place : place + length]
        elif how == 2:
            data[place:place] = data[other : other + length]
        else:
            data[place : place + length] = data[other : other + length]
    return bytes(data)


def changed_graph(whole: bytes, draw: random.Random) -> bytes:
    """The file with one to three changes after which it is still an ONNX file, if no valid one."""
    model = onnx.ModelProto.FromString(whole)
    graph = model.graph
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        node, tensor = draw.choice(graph.node), draw.choice(graph.initializer)
        value = draw.choice([*graph.input, *graph.output]).type.tensor_type
        names = [name for one in graph.node for name in (*one.input, *one.output)]
        how = draw.randrange(9)
        if how == 0:
            node.op_type = draw.choice(graph.node).op_type
        elif how == 1:
            graph.node.remove(node)
        elif how == 2:
            graph.node.add().CopyFrom(node)
        elif how == 3 and node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(names)
        elif how == 4:
            node.output[draw.randrange(len(node.output))] = draw.choice(names)
        elif how == 5 and node.attribute:
            attribute = draw.choice(node.attribute)
            attribute.i, attribute.f = draw.choice(NUMBERS), draw.choice((0, -1, 1e30, np.nan))
            attribute.ints[:] = [draw.choice((number, *NUMBERS)) for number in attribute.ints]
        elif how == 6 and tensor.dims:
            tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(NUMBERS)
        elif how == 7 and tensor.external_data:
            draw.choice(tensor.external_data).value = str(draw.choice(NUMBERS))
        elif value.shape.dim and draw.random() < 0.7:
            draw.choice(value.shape.dim).dim_value = draw.choice(NUMBERS)
        else:
            value.elem_type = draw.randrange(24)
    content: bytes = model.SerializeToString()
    return content


MUTATORS = (changed_bytes, changed_graph)


def is_short_of_memory(line: str) -> bool:
    return "failed to compute" in line and ("llocat" in line or "bad_alloc" in line)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(N_MUTATIONS // N_AT_ONCE))
def test_mutations_of_exports_are_refused_in_one_line_or_write_a_text(
    tiny: Path, tmp_path: Path, seed: int
) -> None:
    sources = (tiny, *genai_models.ALL)
    source, changed = sources[seed // 2 % len(sources)], MUTATORS[seed % 2]
    model = onnx.load(source / "model.onnx", load_external_data=False)
    whole, draw = model.SerializeToString(deterministic=True), random.Random(seed)
    folders = [shutil.copytree(source, tmp_path / str(i)) for i in range(N_AT_ONCE)]
    for folder in folders:
        (folder / "model.onnx").write_bytes(changed(whole, draw))
    for name, exit_code, lines, peak in planned(folders, runs=True):
        assert exit_code in {0, WRONG_MODEL, FAILED}, (name, exit_code, lines)
        errors = [line for line in lines if line.startswith("edgespec: error: ")]
        assert len(errors) == bool(exit_code) and (not exit_code or errors == lines), (name, lines)
        assert exit_code != FAILED or is_short_of_memory(errors[0]), (name, lines)
        assert peak < MAX_PEAK, name
