"""Runs the checks of a program in this folder, in its client's own environment.

Prints a line of JSON for each: its name, and its error or null.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

URL = os.environ["SERVER"] + "/v1"
MODEL = "smollm2"
PARIS = "What is the capital of France?"
LONG = "word " * 6000
"""A text longer than the server's context."""


def raised(kind: type[Exception], ask: Callable[[], Any]) -> Any:
    """The error of a request that must fail."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError("accepted")


def run(names: dict[str, Any]) -> None:
    for name, check in names.items():
        if name.startswith("check_"):
            print(json.dumps({"check": name, "error": _error(check)}), flush=True)


def _error(check: Callable[[], None]) -> str | None:
    try:
        check()
    except Exception:  # noqa: BLE001 - reported by the test
        return traceback.format_exc()
    return None
