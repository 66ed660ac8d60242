"""A model in a process of its own keeps the contracts, and its end is an error, not ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread, Timer

import psutil
import pytest

from edgespec.errors import Cancelled, EdgespecError, UsageError
from edgespec.memory import process
from edgespec.models.embedded import embedded_pair
from edgespec.runtimes import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.isolation import IsolatedModel
from edgespec_runtimes.gguf.options import GgufOptions
from one_tree import ROOT, OneTree
from port_calls import evaluate, prefill
from port_contract import PortContract

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes inherit sockets otherwise")


def isolated() -> IsolatedModel:
    request = ModelRequest(
        embedded_pair().target,
        "target",
        ctx_size=256,
        max_nodes=17,
        max_branches=17,
        n_threads=1,
        options=GgufOptions(flash_attn="on"),
    )
    prepared = runtime.prepare(request)
    try:
        model = prepared._load_isolated(None, None)
        assert isinstance(model, IsolatedModel)
        return model
    finally:
        prepared.close()


@pytest.mark.slow
class TestAnIsolatedModelKeepsTheContract(PortContract):
    atol = 0.2

    @pytest.fixture
    def model_factory(self) -> Callable[[], IsolatedModel]:
        return isolated


@pytest.fixture
def model() -> Iterator[IsolatedModel]:
    """A model of one test, which may end its process."""
    opened = isolated()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def living() -> Iterator[IsolatedModel]:
    """A model of all tests that leave its process alive."""
    opened = isolated()
    yield opened
    opened.close()


@pytest.mark.slow
def test_a_process_that_dies_is_an_error_of_every_call(model: IsolatedModel):
    os.kill(model._process.pid, signal.SIGABRT)
    for _ in range(2):
        with pytest.raises(EdgespecError, match="SIGABRT inside"):
            evaluate(model, OneTree(5), [ROOT])
    model.close()


@pytest.mark.slow
def test_a_process_that_was_killed_blames_no_server(model: IsolatedModel):
    os.kill(model._process.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EdgespecError, match=r"was killed, .* memory is short: lower `memory"):
            evaluate(model, OneTree(5), [ROOT])


def test_a_failure_of_ours_in_that_process_is_told_as_itself(living: IsolatedModel):
    """It ended the process, and was told as a server that was lost."""
    for _ in range(2):
        with pytest.raises(AttributeError, match="no attribute 'fly'") as failure:
            living._call("fly")
        assert any("isolated.py" in note for note in failure.value.__notes__)
    prefill(living, [5, 6])
    living.truncate(0)


@pytest.mark.slow
def test_a_request_to_cancel_that_arrives_late_cancels_no_other_call(living: IsolatedModel):
    prefill(living, [5, 6])
    for _ in range(1000):
        living._control.send(living._n_calls)
    for _ in range(200):
        prefill(living, [7])
    assert living.committed_of(0) == 202
    living.truncate(0)


@pytest.mark.slow
def test_its_process_ends_with_it_and_counts_as_ours_until_then():
    before = process.peak_rss_bytes()
    model = isolated()
    pid = model._process.pid
    assert process.peak_rss_bytes() > before + (20 << 20)
    model.close()
    model.close()
    assert process.peak_rss_bytes() < before + (20 << 20)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(UsageError, match="closed"):
        prefill(model, [1, 2])


@pytest.mark.slow
def test_its_process_ends_with_ours():
    """It would hold its memory, and a server, for ever."""
    code = (
        "import os, test_isolation; model = test_isolation.isolated();"
        "print(model._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE,
        check=False,
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 20
    while _is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_what_runs_there_is_cancelled_from_any_thread(living: IsolatedModel):
    tokens = living.vocabulary.encode("a " * 200)[:200]
    failures: list[Cancelled] = []

    def read() -> None:
        try:
            while True:
                prefill(living, tokens)
                living.truncate(0)
        except Cancelled as error:
            failures.append(error)

    reading = Thread(target=read)
    reading.start()
    while reading.is_alive():
        Timer(0.01, living.cancel).start()
        reading.join(0.05)
    assert failures
