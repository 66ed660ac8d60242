"""The provider that computes an ONNX model: found, shown, and within its memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from sentences import hold_sentence, refuses

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.cli.commands.plan_report import plan_report
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, EdgespecError, UsageError
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.onnx.ort import devices, packages
from edgespec_runtimes.onnx.ort.devices import CPU, CPU_PROVIDER, CUDA_PROVIDER, Device
from edgespec_runtimes.onnx.prepare import providers
from onnx_devices import GIB, STAND_IN, use
from onnx_files import DATA_FILE, write_llama

GPU = Device(CUDA_PROVIDER, "a GPU", GIB, GIB, 1, 1)
Pair = tuple[Path, Path]


def installed(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test of what is loaded by the entry point."""
    missing = "onnx" not in {entry.name for entry in entry_points(group="edgespec.runtimes")}
    reason = "edgespec was installed before it had the ONNX runtime"
    return pytest.mark.slow(pytest.mark.skipif(missing, reason=reason)(test))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An onnxruntime that was built with everything."""
    for module in (devices, providers):
        monkeypatch.setattr(module, "is_listed", lambda _: True)


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(("cuda", "chosen"), [(GPU, GPU), ("no driver", CPU)])
def test_auto_is_cuda_where_it_can_be_used(
    cuda: Device | str, chosen: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "find_cuda", lambda: cuda)
    assert providers.choose("auto").device == chosen


@pytest.mark.usefixtures("listed")
def test_auto_says_why_it_is_the_cpu_where_there_may_be_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(providers, "nvidia_driver", object)
    monkeypatch.setattr(providers, "find_cuda", lambda: "cuDNN 9 is needed")
    note = providers.choose("auto").note
    assert note is not None
    hold_sentence(note)


@pytest.mark.usefixtures("listed")
def test_where_there_is_no_driver_nothing_is_said_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "nvidia_driver", lambda: None)
    monkeypatch.setattr(providers, "find_cuda", lambda: "there is no NVIDIA driver")
    assert providers.choose("auto") == providers.ChosenDevice(CPU)


def test_two_packages_of_onnxruntime_in_one_folder_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = {tmp_path / "onnxruntime": ["onnxruntime", "onnxruntime-gpu"]}
    monkeypatch.setattr(packages, "_installed", lambda: both)
    with refuses(EdgespecError):
        packages.check_packages()


def test_what_was_asked_for_and_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "find_cuda", lambda: "there is none")
    with refuses(UsageError):
        providers.choose("cuda")


@pytest.mark.usefixtures("listed")
def test_without_a_driver_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert "no NVIDIA driver" in str(devices.find_cuda())


class Driver:
    """The driver's functions that `find_cuda` calls."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: self._answer(name, arguments)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name == "cuDeviceGetName":
            arguments[0].value = b"Model T"
        if name == "cuMemGetInfo_v2":
            arguments[0]._obj.value, arguments[1]._obj.value = 3 * GIB, 4 * GIB
        return 0


@pytest.mark.usefixtures("listed")
def test_a_device_is_named_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver())
    monkeypatch.setattr(devices, "_why_cuda_is_unusable", lambda: None)
    found = devices.find_cuda()
    assert isinstance(found, Device)
    assert found.label == "Model T (CUDA)"
    assert (found.total_bytes, found.free_bytes) == (4 * GIB, 3 * GIB)


@pytest.mark.usefixtures("listed")
def test_a_device_is_not_enough_without_cudas_libraries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """onnxruntime prints what it does not find, and falls back to the CPU in silence."""
    monkeypatch.setattr(devices, "_first_cuda_device", lambda: ("Model T", GIB, GIB))
    monkeypatch.setattr(
        devices.ort, "preload_dlls", lambda: print("Failed to load libcublas.so.13: not found")
    )
    monkeypatch.setattr(devices, "_computes_with_cuda", lambda: False)
    devices._why_cuda_is_unusable.cache_clear()
    reason = devices.find_cuda()
    devices._why_cuda_is_unusable.cache_clear()
    assert "Failed to load libcublas.so.13: not found" in str(reason)
    assert "pip install 'onnxruntime-gpu[cuda,cudnn]'" in str(reason)
    assert capsys.readouterr().out == ""


def test_a_gpu_session_takes_no_more_than_it_may() -> None:
    (name, options), (last, _) = GPU.providers(12345)
    assert (name, last) == (CUDA_PROVIDER, CPU_PROVIDER)
    assert options["gpu_mem_limit"] == "12345"
    assert options["arena_extend_strategy"] == "kSameAsRequested"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("models")
    big = write_llama(folder / "big", layers=12, hidden=256, heads=4, ffn=1024, vocab=512)
    return big.parent, write_llama(folder / "small", vocab=512).parent


def settings(pair: Pair, **more: object) -> LoadSettings:
    big, small = pair
    return LoadSettings.model_validate(
        {"model": big, "draft": small, "ctx_size": 128, "memory_budget": "2GiB", **more}
    )


@installed
def test_the_draft_comes_first_and_a_target_that_finds_no_room_is_the_cpus(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(STAND_IN, monkeypatch)
    plan = session.plan(settings(pair, gpu_memory_budget="34MiB"), EngineSettings(draft_max=4))
    assert [row.owner for row in plan.gpu_rows] == ["process", *2 * ["draft"]]
    assert plan.gpu_planned_bytes <= plan.gpu_budget_bytes == 34 << 20
    assert any("are left for it: the CPU computes big" in note for note in plan.notes)


@installed
def test_the_processs_budget_counts_nothing_of_the_gpus(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(STAND_IN, monkeypatch)
    on_cpu = session.plan(settings(pair, gpu_memory_budget=1), EngineSettings(draft_max=4))
    on_gpu = session.plan(settings(pair), EngineSettings(draft_max=4))
    assert on_cpu.gpu_rows == ()
    assert not on_gpu.paged
    weights = (pair[0] / DATA_FILE).stat().st_size
    assert on_cpu.planned_bytes - on_gpu.planned_bytes > weights / 2
    report = plan_report(on_gpu)
    assert report.as_dict()["gpu_planned_bytes"] == on_gpu.gpu_planned_bytes > weights
    assert "planned on the GPU" in "\n".join(report.lines())


@installed
def test_a_draft_that_does_not_fit_leaves_the_gpu_to_the_target(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(STAND_IN, monkeypatch)
    swapped = (pair[1], pair[0])
    plan = session.plan(settings(swapped, gpu_memory_budget="20MiB"), EngineSettings(draft_max=4))
    assert {row.owner for row in plan.gpu_rows} == {"process", "target"}
    assert any("20 are left for it: the CPU computes big" in note for note in plan.notes)


@installed
@pytest.mark.parametrize("budget", ["34MiB", "auto"])
def test_the_text_is_the_same_wherever_it_is_computed(
    budget: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session.load(settings(pair), EngineSettings(draft_max=4)) as running:
        expected = running.generate("the other one", max_tokens=24).tokens
    use(STAND_IN, monkeypatch)
    with session.load(settings(pair, gpu_memory_budget=budget)) as running:
        assert running.plan.gpu_rows
        assert running.generate("the other one", max_tokens=24).tokens == expected


@installed
def test_a_gpu_budget_without_a_gpu_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    use(CPU, monkeypatch)
    with refuses(UsageError):
        session.plan(settings(pair, gpu_memory_budget="75%"))
    with refuses(UsageError):
        settings(pair, gpu_memory_budget="1GiB", provider="cpu")


@installed
def test_what_a_gpus_libraries_take_of_the_process_is_planned_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H200 a process took 267 MiB more than its plan once kernels were used."""
    use(replace(STAND_IN, host_bytes=300 << 20), monkeypatch)
    plan = session.plan(settings(pair), EngineSettings(draft_max=4))
    assert [row.nbytes for row in plan.rows if row.what == "GPU library"] == [300 << 20]


@installed
def test_the_smallest_budget_beside_a_gpu_is_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger budgets ask for larger batches, and the smallest one named was refused."""
    use(STAND_IN, monkeypatch)
    with pytest.raises(BudgetError) as refused:
        session.plan(settings(pair, memory_budget="16MiB"))
    named = refused.value.smallest_bytes
    assert session.plan(settings(pair)).smallest_bytes == named
    assert session.plan(settings(pair, memory_budget=named)).planned_bytes <= named
