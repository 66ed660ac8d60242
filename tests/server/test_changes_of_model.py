"""`edgespec serve` with several models as a process: its memory over changes, and its end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from edgespec.models.embedded import embedded_pair
from embedding_files import write_encoder

MIB = 1 << 20
BUDGET = 220
AMPLE = 400
"""MiB that hold all models of the folder at once."""
MANY_HEAPS: dict[str, str] = {}
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
"""glibc's heaps: one for each thread, whose free tops it keeps (by chance, 10 MiB here), or one for
all."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    for name in ("a", "b"):
        shutil.copy(embedded_pair().target, found / f"{name}.gguf")
    write_encoder(found / "vectors.gguf")
    return found


@contextmanager
def serving(
    folder: Path, budget: int = BUDGET, heaps: Mapping[str, str] = MANY_HEAPS
) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server over the models of a folder, and a client; it does not outlive a failure."""
    process, url = start(folder, budget, heaps)
    with process, httpx.Client(base_url=url, timeout=120) as client:
        try:
            yield process, client
        except BaseException:
            process.kill()
            raise


def start(
    folder: Path, budget: int, heaps: Mapping[str, str] = MANY_HEAPS
) -> tuple[subprocess.Popen[str], str]:
    flags = ("--models-dir", str(folder), "--memory-budget", f"{budget}MiB", "-np", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "edgespec", "serve", "--port", "0", *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **heaps},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"(http://[^/ ]+)/v1", line):
            return process, found[1]
    raise AssertionError("it ended without an address")


def memory(process: subprocess.Popen[str], what: str) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(rf"{what}:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("heaps", [MANY_HEAPS, ONE_HEAP], ids=["many heaps", "one heap"])
def test_memory_is_the_same_after_ten_changes_and_below_the_budget(
    folder: Path, heaps: dict[str, str]
) -> None:
    with serving(folder, heaps=heaps) as (process, client):
        taken = []
        for number in range(10):
            body = {"model": "ab"[number % 2], "prompt": "def f(", "max_tokens": 4}
            assert client.post("/v1/completions", json=body).status_code == 200
            vectors = client.post("/v1/embeddings", json={"model": "vectors", "input": "rain"})
            assert vectors.status_code == 200
            taken.append(memory(process, "VmRSS"))
        if heaps == ONE_HEAP:
            assert max(taken[5:]) <= max(taken[:5]) + 2
        assert memory(process, "VmHWM") <= BUDGET
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_model_of_the_folder_that_is_damaged_ends_nothing(folder: Path) -> None:
    (folder / "damaged.gguf").write_bytes(b"GGUF")
    with serving(folder) as (process, client):
        body = {"prompt": "def f(", "max_tokens": 1}
        assert client.post("/v1/completions", json={"model": "damaged", **body}).status_code == 500
        assert client.post("/v1/completions", json={"model": "a", **body}).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_models_that_fit_together_stay_and_keep_the_budget(folder: Path) -> None:
    with serving(folder, AMPLE) as (process, client):

        def ask(name: str) -> str:
            body = {"model": name, "prompt": "def f(", "max_tokens": 40, "temperature": 0}
            answer = client.post("/v1/completions", json=body)
            return str(answer.json()["choices"][0]["text"])

        alone = ask("a")
        ask("b")
        with ThreadPoolExecutor(4) as pool:
            texts = [*pool.map(ask, "abab")]
        vectors = client.post("/v1/embeddings", json={"model": "vectors", "input": "rain"})
        assert vectors.status_code == 200
        assert texts == [alone] * 4  # both are copies of one model
        assert {"edgespec_model_loads_total 3"} <= {*client.get("/metrics").text.splitlines()}
        assert memory(process, "VmHWM") <= AMPLE
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
