"""A session or a server, and a process that takes more and more memory, in one control group with
a limit.

    python tests/memory_pressure.py MODEL [--limit 400MiB] [--budget auto:120MiB-300MiB] [-n 96]

Needs control groups that may be made, usually as root. `under_pressure` and
`server_under_pressure` are behind slow tests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from edgespec.memory import cgroups
from edgespec.memory.process import margin_bytes
from edgespec.session.session_budget import INTERVAL_S
from edgespec.settings.units import parse_size

MIB = 1 << 20
SESSION = """
import json, sys, time
import edgespec
from edgespec.memory.process import process_rss_bytes

model, budget, n_tokens, pause_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
load = edgespec.LoadSettings(model=model, memory_budget=budget, ctx_size=128, threads=1)
drawn = edgespec.SamplingParams(temperature=0.8, seed=7)
with edgespec.load(load, edgespec.EngineSettings(remember=False)) as session:
    expected = session.generate("def fibonacci(n):", drawn, n_tokens).tokens
    print(json.dumps({"smallest": session.budget.smallest_bytes}), flush=True)
    tokens = []
    with session.stream("def fibonacci(n):", drawn, n_tokens) as generation:
        for event in generation:
            tokens.append(event.token)
            print(json.dumps([session.budget.budget_bytes, process_rss_bytes()]), flush=True)
            time.sleep(pause_s)
    print(json.dumps({"same": tuple(tokens) == tuple(expected)}), flush=True)
"""
HOG = """
import sys, time

taken, total, step, pause_s = [], int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
while len(taken) * step < total:
    taken.append(bytearray(b"x") * step)
    time.sleep(pause_s)
print("full", flush=True)
sys.stdin.read()
"""
HOG_STEP_BYTES, HOG_PAUSE_S = 4 * MIB, 0.25


@dataclass(frozen=True)
class PressedRun:
    """Budgets and resident bytes of a session at each token, and how it ended."""

    budgets: list[int]
    resident: list[int]
    hog_bytes: int
    smallest_bytes: int
    is_same: bool
    """True if each text is that of the same session or server without pressure."""
    n_killed: int


@contextmanager
def control_group(limit_bytes: int) -> Iterator[Path]:
    """A new group that may take `limit_bytes`. Raises OSError where none can be made."""
    root = Path("/sys/fs/cgroup")
    is_unified = (root / "cgroup.controllers").exists()
    group = (root if is_unified else root / "memory") / f"edgespec-{os.getpid()}"
    group.mkdir()
    try:
        limit = group / ("memory.max" if is_unified else "memory.limit_in_bytes")
        limit.write_text(str(limit_bytes))
        yield group
    finally:
        for _ in range(100):
            try:
                group.rmdir()
                break
            except OSError:  # its last process is just ending
                time.sleep(0.1)


def n_killed(group: Path) -> int:
    """Processes of the group that were killed for lack of memory."""
    names = ("memory.events", "memory.oom_control")
    [text] = [(group / name).read_text() for name in names if (group / name).exists()]
    return int(dict(line.split() for line in text.splitlines())["oom_kill"])


def under_pressure(
    model: Path, limit_bytes: int, budget: str, n_tokens: int, pause_s: float = 0.0
) -> PressedRun:
    """Write a text while the hog takes all but what the session's smallest budget needs."""
    with control_group(limit_bytes) as group:
        arguments = [str(model), budget, str(n_tokens), str(pause_s)]
        session = _started(group, "-c", SESSION, *arguments)
        hog = None
        try:
            assert session.stdout is not None
            smallest = json.loads(session.stdout.readline())["smallest"]
            hog_bytes = _hog_bytes(limit_bytes, smallest)
            hog = _started_hog(group, hog_bytes)
            *lines, last = [json.loads(line) for line in session.stdout]
            session.wait()
            killed = n_killed(group)
        finally:
            for process in (session, hog):
                if process is not None:
                    process.kill()
                    process.communicate()
        budgets, resident = [line[0] for line in lines], [line[1] for line in lines]
        return PressedRun(budgets, resident, hog_bytes, smallest, last["same"], killed)


def server_under_pressure(model: Path, limit_bytes: int, budget: str, n_tokens: int) -> PressedRun:
    """Let a server write one text again and again while the hog takes the memory; budgets and
    resident bytes are those after each text."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["-m", str(model), "--memory-budget", budget, "-c", "128", "-t", "1"]
    words += ["--port", str(port), "--quiet"]
    with (
        control_group(limit_bytes) as group,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        server, hog = _started(group, "-m", "edgespec", "serve", *words), None
        budgets, resident, texts = [], [], []

        def write() -> None:
            request = {"prompt": "def fibonacci(n):", "max_tokens": n_tokens}
            request |= {"temperature": 0.8, "seed": 7}
            answer = client.post("/v1/completions", json=request).raise_for_status()
            texts.append(answer.json()["choices"][0]["text"])
            budgets.append(client.get("/v1/budget").json()["budget_bytes"])
            resident.append(cgroups.table(Path(f"/proc/{server.pid}/status"))["VmRSS"])

        try:
            _wait_for(client, server)
            write()
            smallest = client.get("/v1/budget").json()["smallest_bytes"]
            hog_bytes = _hog_bytes(limit_bytes, smallest)
            hog = _started_hog(group, hog_bytes)
            done = threading.Thread(target=_read_line, args=(hog,))
            done.start()
            while done.is_alive():
                write()
            time.sleep(2 * INTERVAL_S)
            write()
            killed = n_killed(group)
        finally:
            for process in (server, hog):
                if process is not None:
                    process.kill()
                    process.communicate()
        is_same = len(set(texts)) == 1
        return PressedRun(budgets, resident, hog_bytes, smallest, is_same, killed)


def _wait_for(client: httpx.Client, server: subprocess.Popen[str]) -> None:
    while server.poll() is None:
        with suppress(httpx.HTTPError):
            if client.get("/health").status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the server ended with {server.returncode}")


def _hog_bytes(limit_bytes: int, smallest_bytes: int) -> int:
    """All of a group's memory but what the smallest budget needs."""
    return max(0, limit_bytes - smallest_bytes - margin_bytes(limit_bytes) - 8 * MIB)


def _started_hog(group: Path, nbytes: int) -> subprocess.Popen[str]:
    return _started(group, "-c", HOG, str(nbytes), str(HOG_STEP_BYTES), str(HOG_PAUSE_S))


def _read_line(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    process.stdout.readline()


def _started(group: Path, *arguments: str, stderr: int | None = None) -> subprocess.Popen[str]:
    """A Python process that is in the group from its first page on."""
    shell = shutil.which("sh")
    assert shell is not None
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    return subprocess.Popen(
        [shell, "-c", enter, str(group), sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--limit", default="400MiB")
    parser.add_argument("--budget", default="auto:120MiB-300MiB")
    parser.add_argument("-n", type=int, default=96)
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    limit_bytes = parse_size(options.limit, 0)
    found = under_pressure(options.model, limit_bytes, options.budget, options.n, options.pause)
    for budget, resident in zip(found.budgets, found.resident, strict=True):
        print(f"{budget / MIB:.0f} {resident / MIB:.0f}")
    print(
        f"hog {found.hog_bytes / MIB:.0f} MiB, smallest {found.smallest_bytes / MIB:.0f}; "
        f"same text: {found.is_same}; killed: {found.n_killed}"
    )


if __name__ == "__main__":
    main()
