"""Tests that need a process to themselves: what they measure is the process's.

Knows pytest and nothing of models.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_HERE = "EDGESPEC_TEST_IN_A_NEW_PROCESS"
_TIME_LIMIT_S = 300


def passed_in_a_new_process(request: pytest.FixtureRequest) -> bool:
    """True if the calling test has passed in a process that ran nothing before; fails if it failed.

    False there: that is the process in which the test goes on.
    """
    node = request.node.nodeid
    if os.environ.get(_HERE) == node:
        return False
    config = request.config
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", node],
        cwd=config.rootpath,
        env={**os.environ, _HERE: node},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIME_LIMIT_S,
    )
    if done.returncode:
        pytest.fail(f"in a process of its own:\n{done.stdout}{done.stderr}", pytrace=False)
    return True
