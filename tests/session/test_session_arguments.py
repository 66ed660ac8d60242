"""Arguments of `load` and `plan`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import edgespec
from edgespec import errors
from edgespec.errors import UsageError
from edgespec.memory import process
from edgespec.session.prepared_models import PreparedModels
from edgespec.settings.config import LoadSettings
from sentences import refuses

pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")

from gguf_files import tiny_llama


@pytest.mark.costly
@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_a_model_that_decodes_alone(kind: type, tmp_path: Path) -> None:
    path = kind(tiny_llama().write(tmp_path / "tiny.gguf"))
    assert edgespec.plan(path).planned_bytes > 0
    with edgespec.load(path) as session:
        assert session.draft is None
        assert len(session.generate("the other one", max_tokens=3).tokens) == 3


def test_a_plan_for_more_memory_than_there_is_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tiny_llama().write(tmp_path / "tiny.gguf"))
    settings = edgespec.LoadSettings(model=path, memory_budget="1TiB")
    plan = edgespec.plan(settings)
    assert not any("of memory for this process" in note for note in plan.notes)
    monkeypatch.setattr(process, "total_bytes", lambda: plan.planned_bytes // 2)
    told = edgespec.plan(settings).notes
    assert sum("of memory for this process" in note for note in told) == 1


@pytest.mark.parametrize("door", [edgespec.load, edgespec.plan])
@pytest.mark.parametrize("settings", [None, b"x.gguf", {"model": "x.gguf"}, 3])
def test_settings_of_a_wrong_type_are_refused(door, settings: object) -> None:
    with refuses(UsageError):
        door(settings)


def test_other_arguments_of_a_wrong_type_are_refused() -> None:
    with refuses(UsageError):
        edgespec.load("x.gguf", engine_settings={"draft_max": 3})
    with refuses(UsageError):
        edgespec.load("x.gguf", trace="trace.json")


def test_every_exception_can_be_had_at_the_top() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    exceptions = [kind for kind in kinds if issubclass(kind, Exception)]
    assert len(exceptions) > 10
    assert all(getattr(edgespec, kind.__name__) is kind for kind in exceptions)


@pytest.mark.parametrize("n_parallel", [1, "auto"])
def test_what_progress_raises_ends_a_plan(
    n_parallel: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was raised only once models were loaded, and never by `plan`."""
    asked = threading.Event()
    prepare = PreparedModels._prepare

    def slowly(models: PreparedModels) -> None:
        asked.wait(5)
        prepare(models)

    def progress(what: str, share: float) -> None:
        asked.set()
        raise RuntimeError(what)

    monkeypatch.setattr(PreparedModels, "_prepare", slowly)
    path = tiny_llama().write(tmp_path / "tiny.gguf")
    settings = LoadSettings(model=path, n_parallel=n_parallel)
    with pytest.raises(RuntimeError, match="planning"):
        edgespec.plan(settings, progress=progress)


def test_sampling_that_was_used_is_taken_with_other_fields(tmp_path: Path) -> None:
    used = edgespec.SamplingParams(repeat_penalty=1.1)
    with edgespec.load(tiny_llama().write(tmp_path / "tiny.gguf")) as session:
        for _ in range(2):
            assert len(session.generate("the other one", used, 2, seed=3).tokens) == 2


def test_options_that_are_none_of_a_runtime_are_refused() -> None:
    with refuses(UsageError):
        edgespec.plan("embedded", options={"gguf": {"cache_type_k": "q8_0"}})


def test_a_thread_that_cannot_be_started_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`generate` waited for it for ever."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with edgespec.load(tiny_llama().write(tmp_path / "tiny.gguf")) as session:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with refuses(errors.EdgespecError):
                session.generate("the other one", max_tokens=3)
        assert len(session.generate("the other one", max_tokens=3).tokens) == 3
