"""Fixtures of tests with control groups."""

from __future__ import annotations

import sys

import pytest

from memory_pressure import MIB, control_group


@pytest.fixture
def groups() -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux has control groups")
    try:
        with control_group(64 * MIB):
            pass
    except OSError as error:
        pytest.skip(f"control groups with limits cannot be made here: {error}")
