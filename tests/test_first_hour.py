"""A first hour by the pages alone: what they tell a user to run works and shows what they show."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("first_hour.sh")
MODEL = "smollm2"
"""A real model of 100 MB, in place of the pages' of 1.1 GB."""


@pytest.mark.long
def test_the_pages_can_be_followed_word_for_word(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPT, tmp_path],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
        env=os.environ | {"FIRST_HOUR_MODEL": MODEL},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
