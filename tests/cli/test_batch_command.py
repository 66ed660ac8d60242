"""`edgespec batch`: files, pipes, exit codes, and runs that were ended."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import command_line
from edgespec.completions.request_limits import max_body_bytes, serving_bytes
from edgespec.files.line_log import LineLog
from edgespec.session import session
from edgespec.session.session import Session
from edgespec.settings.config import DEFAULT_CTX_SIZE
from engine_cases import counting
from sentences import hold_sentence
from session_cases import holds_passes, open_session


def request(name: str, **body: Any) -> str:
    body = {"prompt": [1, 2], "max_tokens": 3} | body
    line = {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line) + "\n"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Settings with which fake models were loaded in the place of real ones."""
    loads: list[Any] = []

    def load(settings: Any, *others: object) -> Session:
        loads.append(settings)
        return open_session(counting())

    monkeypatch.setattr(session, "load", load)
    return loads


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "in").write_text("".join(request(f"r{i}") for i in range(4)))
    return str(tmp_path / "in"), str(tmp_path / "out")


def names(path: str) -> list[str]:
    return [json.loads(line)["custom_id"] for line in Path(path).read_bytes().splitlines()]


def test_a_file_is_answered(loads: list[Any], files: tuple[str, str], capsys) -> None:
    assert command_line.main(["batch", *files]) == 0
    assert names(files[1]) == ["r0", "r1", "r2", "r3"]
    out, err = capsys.readouterr()
    assert out == ""
    assert "requests answered: 4\n" in err
    settings = loads[0]
    for n_ctx in (DEFAULT_CTX_SIZE, 8 * DEFAULT_CTX_SIZE):  # as the plan chooses
        reserve = settings.reserve + settings.reserve_of_token * n_ctx
        assert reserve == serving_bytes(max_body_bytes(n_ctx))
    assert settings.n_parallel == "auto" and not settings.keeps_one_text_fast


def test_a_number_of_texts_that_is_asked_for_is_taken(
    loads: list[Any], files: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "it.toml").write_text("parallel = 3\n")
    assert command_line.main(["batch", *files, "--config", str(tmp_path / "it.toml")]) == 0
    assert command_line.main(["batch", *files, "-np", "2"]) == 0
    assert [settings.n_parallel for settings in loads] == [3, 2]


def test_wherever_a_run_was_killed_the_next_one_goes_on(
    loads: list[Any], files: tuple[str, str], capsys
) -> None:
    assert command_line.main(["batch", *files]) == 0
    whole = Path(files[1]).read_bytes()
    for n_bytes in range(0, len(whole), 401):
        Path(files[1]).write_bytes(whole[:n_bytes])
        n_kept = whole[:n_bytes].count(b"\n")
        assert command_line.main(["batch", *files]) == 0
        assert names(files[1]) == ["r0", "r1", "r2", "r3"]
        kept = b"".join(whole.splitlines(True)[:n_kept])
        assert Path(files[1]).read_bytes().startswith(kept)
        err = capsys.readouterr().err
        assert f"requests answered: {4 - n_kept}" in err.splitlines()[-1]
        assert f"by earlier runs: {n_kept}" in err or n_kept == 0


def test_lines_with_errors_decide_the_exit_code_in_later_runs_too(
    loads: list[Any], files: tuple[str, str], capsys
) -> None:
    with Path(files[0]).open("a") as file:
        file.write("nonsense\n")
    said = f"error: 1 of 5 requests have an error, which their lines in {files[1]} tell"
    for _ in range(2):
        assert command_line.main(["batch", *files, "--quiet"]) == 1
        assert said in capsys.readouterr().err
    assert len(names(files[1])) == 5


@pytest.mark.parametrize(
    "command",
    [
        ["batch"],
        ["batch", "missing", "out"],
        ["batch", ".", "out"],
        ["batch", "in", "no/folder/out"],
        ["batch", "in", "."],
        ["batch", "in", "in"],
        ["batch", "in", "foreign"],
        ["batch", "in", "begun"],
        ["batch", "in", "out", "-np", "0"],
    ],
)
def test_mistakes_are_refused_before_anything_is_loaded(
    command: list[str], loads: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text(request("a"))
    answer = '{"id": "batch_req_1", "custom_id": "x", "response": {"status_code": 200}, '
    foreign = answer + '"error": null}\nmy diary\n'
    Path("foreign").write_text(foreign)
    Path("begun").write_text("my diary")
    assert command_line.main(command) == 2
    hold_sentence(capsys.readouterr().err)
    assert not loads
    assert Path("foreign").read_text() == foreign
    assert Path("begun").read_text() == "my diary"


def test_ctrl_c_keeps_what_is_finished(
    monkeypatch: pytest.MonkeyPatch, files: tuple[str, str], capsys
) -> None:
    target = counting()

    def hold(model: Any) -> None:
        if len(names(files[1])) == 2:
            hook(model)

    def load(*args: object) -> Session:
        return open_session(target)

    holds_passes(target)
    hook, target.hook = target.hook, hold
    interrupt = LineLog.append

    def append(log: LineLog, line: bytes) -> None:
        interrupt(log, line)
        if len(names(files[1])) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(session, "load", load)
    monkeypatch.setattr(LineLog, "append", append)
    assert command_line.main(["batch", *files]) == 130
    assert names(files[1]) == ["r0", "r1"]
    err = capsys.readouterr().err
    assert f"{files[1]} has 2 answers; the same command goes on" in err
    assert err.endswith("edgespec: error: interrupted\n")


def test_a_full_disk_is_one_error(
    loads: list[Any], files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def full(log: LineLog, line: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LineLog, "append", full)
    assert command_line.main(["batch", *files]) == 1
    err = capsys.readouterr().err
    assert err.endswith(f"error: OUT {files[1]} cannot be written: No space left on device\n")
    assert "answers; the same command goes on" not in err
    assert not Path(files[1]).exists()


def test_a_refused_run_leaves_no_empty_file(files: tuple[str, str], capsys) -> None:
    assert command_line.main(["batch", *files, "-m", "none.gguf"]) == 3
    assert not Path(files[1]).exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_process_that_was_killed_is_taken_up_by_the_next(tmp_path: Path) -> None:
    requests, out = tmp_path / "in", tmp_path / "out"
    requests.write_text(
        "".join(request(f"r{i}", prompt="def f(", max_tokens=24, temperature=0) for i in range(60))
    )
    command = [sys.executable, "-m", "edgespec", "batch", str(requests), str(out), "-np", "3"]
    with subprocess.Popen(command) as process:
        while not out.exists() or out.read_bytes().count(b"\n") < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    with out.open("ab") as file:
        file.write(b'{"id": "batch_req_torn')
    requests.write_text("".join(requests.read_text().splitlines(True)[:8]))
    subprocess.run(command, check=True, timeout=120)
    answered = names(str(out))
    assert sorted(set(answered)) == sorted(answered)
    assert set(answered) >= {f"r{i}" for i in range(8)}
