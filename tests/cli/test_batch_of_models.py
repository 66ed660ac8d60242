"""`edgespec batch` with several models: each is loaded once, and answers the lines that name it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import command_line
from edgespec.session import session
from embedding_files import write_encoder
from gguf_files import tiny_llama

BUDGET = ("--memory-budget", "400MiB", "-np", "1")


def request(name: str, model: str | None) -> str:
    body = {"prompt": "one", "max_tokens": 2} | ({} if model is None else {"model": model})
    line = {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    for name in ("one", "two", "unused"):
        tiny_llama().write(found / f"{name}.gguf")
    write_encoder(found / "vectors.gguf")
    (found / "broken.gguf").write_bytes(b"GGUF, cut short")
    return found


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that were loaded."""
    found: list[str] = []
    load = session.load

    def remembered(settings: Any, *others: Any) -> session.Session:
        found.append(settings.model.stem)
        return load(settings, *others)

    monkeypatch.setattr(session, "load", remembered)
    return found


@pytest.mark.slow
def test_each_model_is_loaded_once_and_the_next_run_loads_only_what_is_missing(
    folder: Path, tmp_path: Path, loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["two", "one", "two.gguf", "one", "nobody", None, "vectors", "broken"]
    lines = [request(f"r{n}", model) for n, model in enumerate(named)]
    (tmp_path / "in").write_text("".join([*lines, request("r0", "one")]))
    command = ["batch", str(tmp_path / "in"), str(tmp_path / "out"), "--models-dir", str(folder)]
    assert command_line.main([*command, *BUDGET]) == 1
    assert loads == ["one", "two"]
    written = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    answers = {line["custom_id"]: line["response"] for line in written if line["response"]}
    models = {name: answers[name]["body"].get("model") for name in ("r0", "r1", "r2", "r3")}
    assert models == {"r0": "two", "r1": "one", "r2": "two", "r3": "one"}
    status = [answers[name]["status_code"] for name in ("r4", "r5", "r6", "r7")]
    assert status == [404, 400, 400, 500]
    assert [line["error"]["line"] for line in written if line["error"]] == [9]
    with (tmp_path / "in").open("a") as more:
        more.write(request("r9", "two"))
    assert command_line.main([*command, *BUDGET]) == 1
    assert loads == ["one", "two", "two"]
    assert "requests answered: 2, by earlier runs: 8\n" in capsys.readouterr().err


def test_a_pipe_is_refused_because_it_is_read_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb"):
        monkeypatch.setattr("sys.stdin", pipe)
        command = ["batch", "-", str(tmp_path / "out"), "--models-dir", str(folder)]
        assert command_line.main(command) == 2
    assert "is a pipe" in capsys.readouterr().err
