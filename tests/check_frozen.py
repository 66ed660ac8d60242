"""Freezes an application with PyInstaller, as a folder and as a file: it prints what it did before.

python tests/check_frozen.py [--find-links WHEELS] [--extras gguf,onnx-cpu]

Some minutes, and a package index; llama-cpp-python is compiled unless WHEELS has it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
APPLICATION = """
import os, subprocess, sys

import edgespec
from edgespec import registry
from edgespec.concurrency.own_processes import python
from edgespec.models.embedded import embedded_pair, models_folder

if "STARTED" in os.environ:
    sys.exit("the application was started again")
os.environ["STARTED"] = "yes"
pair, folder = embedded_pair(), models_folder()
pairs = {
    "gguf": (pair.target, pair.draft),
    "onnx": (folder / "edgespec-target-onnx-fp16", folder / "edgespec-draft-onnx-fp16"),
}
for runtime in registry.installed():
    if isinstance(runtime, str):
        continue
    target, draft = pairs[runtime.name]
    settings = edgespec.LoadSettings(model=target, draft=draft, memory_budget="600MiB")
    with edgespec.load(settings) as session, session.stream("import ", max_tokens=16) as events:
        print(runtime.name, [event.text for event in events])
subprocess.run(python("-m", "edgespec", "--version"), check=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--find-links", default=str(ROOT / "dist"))
    parser.add_argument("--extras", default="gguf,onnx-cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "application.py"
        program.write_text(APPLICATION, encoding="utf-8")
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
        (wheel,) = folder.glob("*.whl")
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv/bin/python"
        run(
            *(python, "-m", "pip", "install", "--quiet", "--find-links", options.find_links),
            *(f"{wheel}[{options.extras}]", "pyinstaller"),
        )
        expected, usual_s = timed(folder, python, program)
        print(f"not frozen: {usual_s:.1f} s\n{expected}", end="")
        mistakes = 0
        for kind, made in (("--onedir", "application/application"), ("--onefile", "application")):
            place = folder / kind
            freeze = [python, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN"]
            run(*freeze, kind, "--distpath", place, program, cwd=folder)
            written, run_s = timed(folder, place / made)
            files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
            size_mb = sum(path.stat().st_size for path in files) / 1e6
            verdict = "the same" if written == expected else f"otherwise: {written}"
            mistakes += written != expected
            print(f"{kind}: {len(files)} files, {size_mb:.0f} MB, {run_s:.1f} s, {verdict}")
    return 1 if mistakes else 0


def run(*command: object, cwd: Path | None = None) -> None:
    subprocess.run([*map(str, command)], cwd=cwd, check=True)


def timed(folder: Path, *command: object) -> tuple[str, float]:
    """The second run's output, and its seconds: the first one fills the cache."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    for _ in range(2):
        begun_s = time.perf_counter()
        done = _application(command, environment)
    return done, time.perf_counter() - begun_s


def _application(command: Sequence[object], environment: dict[str, str]) -> str:
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
