"""Ctrl-C once, twice and thrice; each in a process of its own, where signals are real."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from edgespec.cli.interrupts import Interrupts

PROCESS = """
import os, signal, sys
from edgespec.cli.interrupts import Interrupts

interrupts = Interrupts()

def interrupt():
    os.kill(os.getpid(), signal.{signal})

def main():
    with interrupts.heard(until_the_end=True):
        try:
{body}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
{closing}
    return 130

code = main()
{last}
sys.exit(code)
"""


def run(body: str, closing: str = "pass", last: str = "pass", number: str = "SIGINT"):
    code = PROCESS.format(
        signal=number, body=" " * 12 + body, closing=" " * 12 + closing, last=last
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_the_first_one_is_raised(number: str) -> None:
    ended = run("interrupt()", number=number)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "interrupted\n", "")


def test_a_second_one_does_not_disturb_what_is_being_closed() -> None:
    ended = run("interrupt()", closing="interrupt(); print('closed', flush=True)")
    assert (ended.returncode, ended.stdout) == (130, "interrupted\nclosed\n")
    assert ended.stderr == "\nedgespec: stopping; once more ends it at once\n"


def test_a_third_one_ends_the_process_at_once() -> None:
    closing = "interrupt(); interrupt(); print('closed', flush=True)"
    ended = run("interrupt()", closing=closing)
    assert (ended.returncode, ended.stdout) == (130, "interrupted\n")
    assert ended.stderr.endswith("edgespec: error: interrupted\n")
    assert "Traceback" not in ended.stderr


def test_one_that_comes_when_all_is_done_changes_nothing() -> None:
    ended = run("pass", last="interrupt()")
    assert (ended.returncode, ended.stderr) == (130, "")


def test_what_can_stop_in_good_order_is_asked_to() -> None:
    """In a thread: the main thread may hold the lock that stopping needs."""
    body = (
        "import threading; asked = threading.Event(); lock = threading.Lock()\n"
        "            def stop():\n"
        "                with lock: asked.set()\n"
        "            with interrupts.stopping(stop):\n"
        "                with lock: interrupt()\n"
        "                print(asked.wait(60), flush=True)"
    )
    ended = run(body)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "True\n", "")


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupts().heard():
        pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """A shell ignores SIGINT for processes that it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts().heard():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


IMPORTING = """
import os, signal, sys
from edgespec import __main__

class Importing:
    def find_spec(self, name, path, target=None):
        if name == "edgespec.cli":
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))

sys.meta_path.insert(0, Importing())
sys.exit(__main__.main())
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_imports_ends_the_command_like_a_later_one(name: str) -> None:
    """SIGTERM had ended the process by the signal, without a word."""
    command = [sys.executable, "-c", IMPORTING, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "edgespec: error: interrupted\n")
