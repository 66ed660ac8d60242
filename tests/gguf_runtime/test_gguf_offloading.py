"""Layers on a GPU, planned before any is there; else an RPC server's device is in its place."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import BudgetError
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.memory.process import process_rss_bytes
from edgespec.models.embedded import embedded_pair
from edgespec.registry import GpuMemory, ModelRequest
from edgespec.session.opening import plan
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.llama import ggml, gpu
from edgespec_runtimes.gguf.llama.page_advice import Mappings
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.prepared import PreparedGguf
from edgespec_runtimes.gguf.weights.offloading import offloading
from paging_contract import load_either, load_paged, one_by_one
from port_contract import TEXT
from sentences import refuses

PAIR = embedded_pair()
TARGET = read_header(PAIR.target)
pytestmark = pytest.mark.usefixtures("gpu_device")


def prepared(n_gpu_layers: int, owner: str = "target") -> PreparedGguf:
    options = GgufOptions(
        flash_attn="on", n_gpu_layers=n_gpu_layers, n_gpu_layers_draft=n_gpu_layers
    )
    path = PAIR.draft if owner == "draft" else PAIR.target
    wanted = ModelRequest(path, owner, 256, 17, 17, 2, batch_size=128, options=options)
    return runtime.prepare(wanted)  # larger batches would lend weights memory without a GPU


def planned(**options: object) -> MemoryPlan:
    given = {"draft": PAIR.draft, "memory_budget": "1GiB", "ctx_size": 256} | options
    return plan(LoadSettings.model_validate({"model": PAIR.target, **given}))


def test_the_head_goes_first_and_the_last_layers_next():
    assert offloading(TARGET, 1).names == {
        tensor.name for tensor in TARGET.tensors if tensor.name.startswith("output")
    }
    layers = {name.split(".")[1] for name in offloading(TARGET, 3).names if name[:3] == "blk"}
    assert layers == {str(TARGET.n_layers - 1), str(TARGET.n_layers - 2)}


def test_the_input_stays_whatever_goes():
    left = {tensor.name for tensor in TARGET.tensors} - offloading(TARGET, 99).names
    assert left == {"token_embd.weight"}


def test_what_a_gpu_does_not_multiply_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggml, "multiplies", lambda _device, kind, *_: kind != ggml.Q8_0)
    kinds = {TARGET.tensors_by_name[name].type.code for name in offloading(TARGET, 99).names}
    assert kinds == {ggml.F32}


def test_the_plan_divides_the_memory_of_the_device():
    found = planned(n_gpu_layers=2, n_gpu_layers_draft=99)
    assert {row.owner for row in found.gpu_rows} >= {"target", "draft"}
    assert offloading(TARGET, 2).nbytes in [row.nbytes for row in found.gpu_rows]
    assert 0 < found.gpu_planned_bytes <= found.gpu_budget_bytes


@pytest.mark.slow
def test_more_layers_than_its_budget_holds_are_refused_with_the_number_that_fits():
    layers_bytes = planned(n_gpu_layers=4).gpu_planned_bytes
    budget = f"{layers_bytes}B"
    planned(n_gpu_layers=4, gpu_memory_budget=budget)
    with pytest.raises(BudgetError, match=r"`n_gpu_layers=99`.*`n_gpu_layers=4`"):
        planned(n_gpu_layers=99, gpu_memory_budget=budget)


def test_a_model_larger_than_the_device_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "memory", lambda: GpuMemory("small", MIB // 2, MIB // 2, 0))
    with refuses(BudgetError, figures=False):
        planned(n_gpu_layers_draft=99)


def test_some_layers_leave_room_for_the_whole_cache():
    with closing(prepared(2)) as some, closing(prepared(0)) as none:
        rows = [[row.as_dict() for row in one.needs().fixed] for one in (some, none)]
    assert rows[0] == rows[1]


def test_what_shares_the_machines_memory_takes_it_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu.sys, "platform", "darwin")
    with closing(prepared(99)) as target:
        rows = {row.what: row.nbytes for row in target.needs().fixed}
    assert rows["weights of layers on the GPU"] == offloading(TARGET, 99).nbytes
    assert rows["KV cache (256 tokens)"] > 0


@pytest.mark.costly
@pytest.mark.parametrize("n_gpu_layers", [1, 3, 6])
def test_what_stays_is_paged_and_computes_the_same(gpu_device: int, n_gpu_layers: int):
    """To the last bit where the same kernels do, as a server's."""
    is_gpu = gpu_device in ggml.devices_of(ggml.kind_of(gpu_device))
    logits, segments = [], []
    for n in (0, n_gpu_layers):
        with closing(load_paged(prepared(n))) as model:
            logits.append(one_by_one(model, model.vocabulary.encode(TEXT)[:12]))
            segments.append(model.paging().bytes_read)
    assert np.allclose(*logits, rtol=0.0, atol=0.3 if is_gpu else 0.0)
    assert 0 < segments[1] < segments[0]


def test_all_layers_on_a_gpu_leave_nothing_to_page():
    target = prepared(99)
    assert target.needs().cuts == ()
    with closing(load_either(target)) as model:
        assert one_by_one(model, model.vocabulary.encode(TEXT)[:4]).any()


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[mmap.mmap]:
    path = tmp_path / "weights"
    path.write_bytes(bytes([7]) * (16 * MIB))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as content:
        yield content


def test_pages_that_were_copied_to_a_gpu_are_given_back(mapped: mmap.mmap):
    mappings = Mappings(is_lazy=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    mappings.map(lambda *_: address, 0, len(mapped), 0, 0, 0, 0)
    assert sum(mapped[::4096]) == 7 * len(mapped) // 4096
    before = process_rss_bytes()
    mappings.drop_pages()
    assert before - process_rss_bytes() > 12 * MIB
    assert mapped[-1] == 7, "what is read again is the file's"
