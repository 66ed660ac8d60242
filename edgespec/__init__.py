"""Runs language models that do not fit in memory: weights paged in under a budget, and drafted.

    with edgespec.load(settings) as session: ...

The names below are imported when they are first used, so that importing edgespec costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes as long as the rest of a command's first steps
if TYPE_CHECKING:
    from typing import Any

    from edgespec.config import LoadSettings as LoadSettings
    from edgespec.engine.sampling import SamplingParams as SamplingParams
    from edgespec.engine.settings import EngineSettings as EngineSettings
    from edgespec.errors import EdgespecError as EdgespecError
    from edgespec.session import Session as Session
    from edgespec.session import load as load
    from edgespec.session import plan as plan
    from edgespec.trace_file import open_trace as open_trace

_HOME = {
    "EdgespecError": "errors",
    "EngineSettings": "engine.settings",
    "LoadSettings": "config",
    "SamplingParams": "engine.sampling",
    "Session": "session",
    "load": "session",
    "open_trace": "trace_file",
    "plan": "session",
}

__all__ = [
    "EdgespecError",
    "EngineSettings",
    "LoadSettings",
    "SamplingParams",
    "Session",
    "load",
    "open_trace",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgespec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"edgespec.{_HOME[name]}"), name)
