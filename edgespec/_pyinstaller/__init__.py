"""Hooks of PyInstaller, so that it freezes an application with edgespec without any option."""

from __future__ import annotations

from pathlib import Path


def hook_dirs() -> list[str]:
    """The folder of the hooks, for PyInstaller's entry point `hook-dirs`."""
    return [str(Path(__file__).parent)]
