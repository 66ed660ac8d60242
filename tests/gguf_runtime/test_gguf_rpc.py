"""Layers on RPC servers: real devices, which compute in a process of their own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread, Timer

import numpy as np
import pytest

from edgespec.errors import BudgetError, EdgespecError, ModelError, TargetLost
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.llama import rpc
from edgespec_runtimes.gguf.llama.rpc import ServerMemory
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.prepared import PreparedGguf
from edgespec_runtimes.gguf.weights.offloading import to_servers
from paging_contract import load_either, load_paged, one_by_one
from port_contract import TEXT, PortContract
from port_models import model_request
from rpc_servers import free_port, needs_rpc, running, use_as_gpu
from sentences import refuses
from session_cases import at_once
from zoo_files import write_model
from zoo_species import Species

PAIR = embedded_pair()
TARGET = read_header(PAIR.target)
LAYER_BYTES = max(
    sum(t.nbytes for t in TARGET.tensors if t.name.startswith(f"blk.{layer}."))
    for layer in range(TARGET.n_layers)
)


def prepared(server: str = "", n_layers: int = 0) -> PreparedGguf:
    options = GgufOptions(flash_attn="on", rpc=server, n_gpu_layers=n_layers)
    return runtime.prepare(ModelRequest(PAIR.target, "target", 256, 17, 17, 2, options=options))


def on_server(server: str, n_layers: int = 0) -> LanguageModel:
    """The target with layers there and the rest paged, or with all layers there."""
    return load_either(prepared(server, n_layers), is_paged=n_layers > 0)


@pytest.mark.slow
class TestSomeLayersThereAndTheRestPagedKeepTheContract(PortContract):
    atol = 0.2

    @pytest.fixture
    def model_factory(self, rpc_server: str) -> Callable[[], LanguageModel]:
        return lambda: on_server(rpc_server, 3)


@pytest.mark.slow
class TestDraftOnADeviceKeepsTheContract(PortContract):
    atol = 0.2

    @pytest.fixture
    def model_factory(
        self, rpc_server: str, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], LanguageModel]:
        use_as_gpu(monkeypatch, rpc_server)
        # with its tokenizer, of which the contract asks much
        monkeypatch.setattr(PreparedGguf, "_without_texts", None)
        options = GgufOptions(flash_attn="on", n_gpu_layers_draft=99)
        request = ModelRequest(PAIR.draft, "draft", 256, 17, 17, 2, options=options)
        return lambda: load_either(runtime.prepare(request))


@pytest.mark.slow
@pytest.mark.parametrize("n_layers", [1, 3, 0])
def test_logits_are_those_of_this_machine(rpc_server: str, n_layers: int):
    with closing(load_paged(prepared())) as here, closing(on_server(rpc_server, n_layers)) as there:
        tokens = here.vocabulary.encode(TEXT)[:12]
        assert np.array_equal(one_by_one(there, tokens), one_by_one(here, tokens))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["lfm2", "qwen35", "gemma3"])
def test_hybrids_and_windows_compute_there_what_they_compute_here(
    architecture: str, rpc_server: str, tmp_path: Path
):
    path = write_model(tmp_path / "model.gguf", Species(architecture))
    found = []
    for server in ("", rpc_server):
        options = GgufOptions(flash_attn="on", rpc=server, n_gpu_layers=2 if server else 0)
        request = ModelRequest(path, "target", 128, 5, 4, 1, options=options)
        with closing(load_either(runtime.prepare(request))) as model:
            found.append(one_by_one(model, range(3, 19)))
    assert np.array_equal(*found)


def text(no_draft: bool, **options: object) -> str:
    given = {"draft": None if no_draft else PAIR.draft, "ctx_size": 256} | options
    load = LoadSettings.model_validate({"model": PAIR.target, "memory_budget": "2GiB"} | given)
    with session.load(load) as loaded:
        return loaded.generate("def gcd(a, b):", max_tokens=24).text


@pytest.mark.slow
@pytest.mark.parametrize("n_layers", [3, 0])
def test_a_text_is_the_same_there_and_with_a_draft(rpc_server: str, n_layers: int):
    expected = text(no_draft=True)
    assert text(no_draft=True, rpc=rpc_server, n_gpu_layers=n_layers) == expected
    assert text(no_draft=False, rpc=rpc_server, n_gpu_layers=n_layers) == expected


def planned(server: str, **options: object) -> MemoryPlan:
    given = {"model": PAIR.target, "draft": PAIR.draft, "memory_budget": "1GiB", "ctx_size": 256}
    return session.plan(LoadSettings.model_validate(given | {"rpc": server} | options))


@pytest.mark.slow
def test_the_plan_says_what_a_server_holds_and_that_it_rounds_by_itself(rpc_server: str):
    notes = planned(rpc_server).notes
    assert any(f"{rpc_server} holds layers 0 to 5" in note for note in notes)
    assert any(f"layers of it are computed by {rpc_server}, and" in note for note in notes)


@pytest.mark.slow
def test_weights_that_are_there_are_not_planned_here(rpc_server: str):
    weights = [
        sum(row.nbytes for row in planned(server).rows if row.what == "weights")
        for server in ("", rpc_server)
    ]
    assert weights[0] - weights[1] > 0.9 * LAYER_BYTES * TARGET.n_layers


@pytest.mark.slow
def test_trees_stay_smaller_than_a_servers_tiles(rpc_server: str):
    """Its processor cannot be told to keep from them."""
    request = model_request(
        PAIR.target,
        ctx_size=256,
        max_nodes=97,
        max_branches=32,
        n_threads=2,
        fewer_nodes=(65, 49),
        options=GgufOptions(rpc=rpc_server),
    )
    with closing(runtime.prepare(request)) as target:
        assert {batch.max_nodes for batch in target.needs().batches} == {49}


def server(name: str, n_layers: float) -> ServerMemory:
    free = int(n_layers * LAYER_BYTES / 0.95) + TARGET.weight_bytes
    return ServerMemory(name, free)


def test_layers_are_given_as_memory_allows():
    """The last layers go, the last server first; each has room for a message with a tensor."""
    found = to_servers(TARGET, [server("a", 2.5), server("b", 3.5)], None, 0, TARGET.weight_bytes)
    assert sum(found.placement.shares) in (4, 5)
    assert found.placement.servers == ("a", "b")
    assert found.placement.n_layers == sum(found.placement.shares) + 1  # and the head


def test_more_layers_than_there_is_memory_for_are_refused_with_the_number_that_fits():
    with refuses(BudgetError, figures=False):
        to_servers(TARGET, [server("a", 3.5)], 6, 0, TARGET.weight_bytes)


@needs_rpc
def test_a_server_that_is_not_there_is_an_error():
    with refuses(ModelError):
        prepared(f"127.0.0.1:{free_port()}").needs()


ASKED_BYTES = 1 + 8 + 24
"""An answer: a command, a size, and what the client's connection can do."""


@contextmanager
def stranger(said: bytes) -> Iterator[str]:
    """The address of a program that answers so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                # Were a part of it unread, closing would take the answer back.
                connection.recv(ASKED_BYTES, socket.MSG_WAITALL)
                connection.sendall(said)

        Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@needs_rpc
def test_what_answers_otherwise_is_an_error():
    with stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address, refuses(ModelError):
        prepared(address).needs()


@pytest.mark.slow
@needs_rpc
def test_a_server_that_never_answers_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rpc, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener, refuses(ModelError):
        prepared(f"127.0.0.1:{listener.getsockname()[1]}").needs()


@pytest.mark.slow
@needs_rpc
@pytest.mark.parametrize("moment", range(0, 50, 5))
def test_a_server_may_be_killed_at_any_moment(moment: int):
    """In the prompt, in a pass, between passes: one error each time, and the process goes on."""
    draft = PAIR.draft if moment % 2 else None
    with running() as (address, process):
        load = LoadSettings.model_validate(
            {"model": PAIR.target, "draft": draft, "memory_budget": "1GiB", "rpc": address}
        )
        with session.load(load) as loaded:
            killing = Timer(0.005 * moment, process.kill)
            killing.start()
            with refuses(EdgespecError):
                at_once(loaded, ["def gcd(a, b):"] * 9, max_tokens=200)
            killing.join()


@pytest.mark.slow
@needs_rpc
def test_a_new_server_at_a_lost_address_is_an_error_and_not_an_endless_wait():
    with running() as (address, process):
        load = LoadSettings(model=PAIR.target, memory_budget="1GiB", rpc=address)
        with session.load(load) as loaded:
            process.kill()
            with pytest.raises(TargetLost):
                loaded.generate("def gcd(a, b):", max_tokens=20)
    port = int(address.rpartition(":")[2])
    with running(port=port), pytest.raises(TargetLost):
        session.load(load)
    with session.load(LoadSettings(model=PAIR.target)):
        pass  # no thread holds what later models need


@pytest.mark.slow
@needs_rpc
def test_a_server_lends_what_its_budget_leaves():
    with running("120MiB") as (address, _):
        (found,) = rpc.memory_of([address])
        assert found.name == address
        assert found.free_bytes < 120 * MIB - 40 * MIB
