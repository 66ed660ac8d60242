"""Hypothesis draws the same examples everywhere, and no machine is too slow for them. What tests
keep in the cache folder ends with them."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil  # noqa: F401 - tests that change sys.platform would import another system's
import pytest
from hypothesis import settings

import sentences
from edgespec.cli.command_line import set_up_libraries
from edgespec.memory import heap, process

pytest.register_assert_rewrite(
    "engine_cases",
    "reference",
    "fake_cache",
    "fake_model",
    "paging_contract",
    "port_calls",
    "port_contract",
    "slots_contract",
    "state_contract",
    "prepared_contract",
    "features_contract",
)
PROCESS_BYTES = 128 << 20
N_EXAMPLES = 40
"""Examples of a property that names no number: they are the same everywhere."""
settings.register_profile("edgespec", deadline=None, derandomize=True, max_examples=N_EXAMPLES)
settings.load_profile("edgespec")

heap.trim_heap_top = lambda: None  # before the runtime takes it by name: see `process_of_one_size`

gc.disable()  # until tests are collected, which makes objects and no garbage
set_up_libraries(os.environ)  # workers outnumber cores
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests import onnxruntime by themselves
# without files of bytecode, a process that a test starts spends half of its time on compiling
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts what runs in the background deaf to Ctrl-C, and its children would be, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as nohup leaves it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the first case of each costly test among the fast ones; the others are slow.

    Long files are begun first, then those of many tests, so that no worker waits for another's.
    """
    begun, long_files = set(), set()
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")
            long_files.add(item.path)
        if item.get_closest_marker("costly"):
            name = item.nodeid.partition("[")[0]
            if name in begun:
                item.add_marker("slow")
            begun.add(name)
    n_tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in long_files, -n_tests[item.path]))


def pytest_collection_finish() -> None:
    """Take modules and ten thousand tests out of every later garbage collection, and collect less
    often: looking for garbage takes a second there, and there is hardly any."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def nothing_kept_yet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Keep learnt, tuned and prepared files of earlier runs and of other modules out of a module's
    tests; commands that tests start are told so by the environment. What llama.cpp's libraries can
    do on this machine is tried once for all."""
    folder = tmp_path_factory.mktemp("cache")
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if hasattr(request.config, "workerinput") else shared
    sentences.folder = shared
    trials = shared / "trials of llama.cpp"
    trials.mkdir(exist_ok=True)
    (folder / "edgespec").mkdir()
    (folder / "edgespec" / "llama.cpp").symlink_to(trials, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield


@pytest.fixture(autouse=True, scope="session")
def process_of_one_size() -> Iterator[None]:
    """Count this process as one of PROCESS_BYTES: what it takes depends on the tests before.

    Nothing is handed back before it is counted, or after loading, which took a quarter of the time
    of opening a small model; processes that tests start, those of tests/memory among them, do so.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "footprint_bytes", lambda: PROCESS_BYTES)
        patch.setattr(heap, "trim_heap", lambda: None)
        yield


@pytest.fixture
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache folder of a test; it does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "edgespec"


@pytest.fixture(scope="session")
def rpc_server() -> Iterator[str]:
    """The address of an RPC server, a device with memory of its own; skipped if the build of
    llama.cpp has no RPC."""
    from edgespec_runtimes.gguf.llama import rpc
    from rpc_servers import running

    if not rpc.is_supported():
        pytest.skip(f"no device to test with: {rpc.MISSING}")
    with running() as (address, _):
        yield address


@pytest.fixture
def gpu_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The address of the GPU that llama.cpp finds, else of an RPC server's device in its place."""
    from edgespec_runtimes.gguf.llama import gpu
    from rpc_servers import use_as_gpu

    return gpu.find() or use_as_gpu(monkeypatch, request.getfixturevalue("rpc_server"))
