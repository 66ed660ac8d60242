"""Exit codes in words."""

from __future__ import annotations

import pytest

from edgespec.concurrency.exit_codes import exit_reason


@pytest.mark.parametrize(
    ("exit_code", "name"),
    [(-11, "SIGSEGV"), (-4, "SIGILL"), (139, "SIGSEGV"), (-6, "SIGABRT")],
)
def test_a_crash_has_a_name(exit_code: int, name: str):
    assert f"native code crashed, {name}" in exit_reason(exit_code)


@pytest.mark.parametrize("exit_code", [0, 1, -9, -15, 137, 255, -1000])
def test_other_ends_are_no_crashes(exit_code: int):
    assert "crashed" not in exit_reason(exit_code)


def test_a_killed_process_may_have_lacked_memory():
    assert "where memory is short" in exit_reason(-9)


def test_an_exit_code_is_told_with_the_last_words():
    assert exit_reason(9, "oh") == "exit code 9: oh"


def test_an_end_from_outside_is_no_crash():
    assert exit_reason(-15) == "ended by SIGTERM"
