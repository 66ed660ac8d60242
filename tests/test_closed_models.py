"""A closed model refuses what would touch its memory, and closing waits for who is in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sentences import refuses

pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")
pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.errors import Cancelled, UsageError
from edgespec.ports import LanguageModel
from edgespec.registry import find
from gguf_files import tiny_llama
from one_tree import ROOT, OneTree
from onnx_files import write_llama
from paging_contract import load_paged
from port_calls import evaluate, prefill
from port_models import model_request

USES: dict[str, Callable[[LanguageModel], object]] = {
    "prefill": lambda model: prefill(model, [1, 2]),
    "evaluate": lambda model: evaluate(model, OneTree(1), [ROOT]),
    "commit": lambda model: model.commit(OneTree(1), [ROOT]),
    "truncate": lambda model: model.truncate(0),
}


def write(kind: str, folder: Path) -> Path:
    if kind == "gguf":
        return tiny_llama().write(folder / "tiny.gguf")
    return write_llama(folder / "onnx", context=128).parent


@pytest.fixture(params=["gguf", "onnx"])
def paged(request: pytest.FixtureRequest, tmp_path: Path) -> LanguageModel:
    path = write(request.param, tmp_path)
    wanted = model_request(path, max_nodes=8)
    return load_paged(find(path).prepare(wanted), 0.5)


@pytest.mark.costly
@pytest.mark.parametrize("use", USES)
def test_a_closed_model_refuses_to_be_used(paged: LanguageModel, use: str) -> None:
    prefill(paged, [1, 2, 3])
    paged.close()
    with refuses(UsageError):
        USES[use](paged)


def test_totals_of_paging_outlive_the_model(paged: LanguageModel) -> None:
    prefill(paged, [1, 2, 3])
    paged.close()
    assert paged.paging().passes == 1
    assert paged.paging().bytes_read > 0


def test_closing_waits_for_who_is_inside(paged: LanguageModel) -> None:
    begun = threading.Event()
    ended: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                prefill(paged, [1, 2, 3], lambda what, share: begun.set())
                paged.truncate(0)
        except (Cancelled, UsageError) as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait()
    paged.close()
    reader.join()
    assert len(ended) == 1


def test_a_callback_of_the_model_cannot_close_it(paged: LanguageModel) -> None:
    with refuses(UsageError):
        prefill(paged, [1, 2, 3], lambda what, share: paged.close())
    paged.close()
