"""Installs programs of other people into folders of their own, once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INSTALL_S = 300


def packages_in(folder: Path, name: str, packages: Sequence[str]) -> Path:
    """The folder below `folder` that holds `packages`: npm's, named with `@`, or PyPI's, with `==`.

    Raises OSError or SubprocessError, with what the installer said, if they cannot be had.
    """
    digest = hashlib.sha256(" ".join([sys.version, *packages]).encode()).hexdigest()[:12]
    place = folder / f"{name}-{digest}"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for command in _python(place, packages) if "==" in packages[0] else _node(place, packages):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
        (place / "complete").touch()
    return place


def _python(place: Path, packages: Sequence[str]) -> list[list[str]]:
    python = str(place / "bin" / "python")
    if shutil.which("uv"):
        make = ["uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(place)]
        return [make, ["uv", "pip", "install", "--quiet", "--python", python, *packages]]
    make = [sys.executable, "-m", "venv", str(place)]
    return [make, [python, "-m", "pip", "install", "--quiet", *packages]]


def _node(place: Path, packages: Sequence[str]) -> list[list[str]]:
    options = ["--silent", "--no-audit", "--no-fund", "--prefix", str(place)]
    return [["npm", "install", *options, *packages]]
