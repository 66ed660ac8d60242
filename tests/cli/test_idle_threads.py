"""Threads that wait for each other leave a busy machine's cores to others."""

import os
import subprocess
import sys

import pytest

from edgespec.cli.command_line import set_up_libraries
from edgespec.concurrency.spinning import SHORT


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": str(SHORT), "OPENBLAS_NUM_THREADS": "1"}),
        (
            {"GOMP_SPINCOUNT": "5", "OPENBLAS_NUM_THREADS": "2"},
            {"GOMP_SPINCOUNT": "5", "OPENBLAS_NUM_THREADS": "2"},
        ),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active", "OPENBLAS_NUM_THREADS": "1"}),
    ],
)
def test_idle_threads_sleep_soon_unless_the_user_chose_otherwise(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    set_up_libraries(given)
    assert given == expected | {"GGML_NO_BACKTRACE": "1"}


def test_importing_the_library_changes_no_environment() -> None:
    code = (
        "import os; before = dict(os.environ); import edgespec.cli.command_line; "
        "assert before == dict(os.environ)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
