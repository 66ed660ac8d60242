"""The switch against what onnxruntime's official builds tell their maker as they start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_SWITCH = "ORT_DISABLE_TELEMETRY"


@contextmanager
def silenced() -> Iterator[None]:
    """Context manager in which onnxruntime starts silently, unless the user has set the switch."""
    unset = _SWITCH not in os.environ
    os.environ.setdefault(_SWITCH, "1")
    try:
        yield
    finally:
        if unset:
            del os.environ[_SWITCH]


def silent_environment() -> Mapping[str, str]:
    """The environment of a child process in which onnxruntime starts silently."""
    return {_SWITCH: "1"} | os.environ
