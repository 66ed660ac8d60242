"""Ctrl-C once and twice; each in a process of its own, where signals are real."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from edgespec.cli.interrupts import Interrupts

PROCESS = """
import os, signal, subprocess, sys, time
from edgespec.cli.interrupts import Interrupts

interrupts = Interrupts()
later = lambda: time.sleep(0.6)

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


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_one_is_raised(number: str) -> None:
    ended = run("interrupt()", number=number)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "interrupted\n", "")


def test_one_that_native_code_has_lost_is_raised_again() -> None:
    """Interrupted imports of onnxruntime go on with an ImportError."""
    body = (
        "try: interrupt()\n"
        "            except KeyboardInterrupt: print('lost', flush=True)\n"
        "            for _ in range(300): time.sleep(0.1)"
    )
    ended = run(body)
    assert (ended.returncode, ended.stdout) == (130, "lost\ninterrupted\n")


def test_a_second_one_ends_the_process_and_its_programs_at_once() -> None:
    sleeper = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    closing = (
        f"print(subprocess.Popen({sleeper}, start_new_session=True).pid, flush=True)\n"
        "            later(); interrupt(); print('closed', flush=True)"
    )
    ended = run("interrupt()", closing=closing)
    said, child = ended.stdout.split()
    assert (ended.returncode, said) == (130, "interrupted")
    assert ended.stderr.endswith("\nedgespec: error: interrupted\n")
    deadline = time.monotonic() + 60  # who is killed ends soon after the killer
    while is_running(int(child)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(int(child))


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_server_has_two_orderly_ones() -> None:
    body = (
        "stop = lambda: print('stop', flush=True)\n"
        "            with interrupts.stopping(stop, n_orderly=2):\n"
        "                interrupt(); later(); interrupt(); later(); interrupt(); later()"
    )
    ended = run(body)
    assert (ended.returncode, ended.stdout) == (130, "stop\nstop\n")


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


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """A shell ignores SIGINT for processes that it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts().heard():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


IMPORTING = """
import os, signal, sys, weakref
from edgespec import __main__

class Importing:
    def find_spec(self, name, path, target=None):
        if name == "edgespec.cli":
            {interrupt}

sys.meta_path.insert(0, Importing())
sys.exit(__main__.main())
"""


INTERRUPT = "os.kill(os.getpid(), getattr(signal, sys.argv[1]))"
IN_A_CALLBACK = f"weakref.ref(Importing(), lambda _: {INTERRUPT})"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("interrupt", [INTERRUPT, IN_A_CALLBACK])
def test_a_signal_during_imports_ends_the_command_like_a_later_one(
    name: str, interrupt: str
) -> None:
    """SIGTERM had ended the process by the signal, without a word; SIGINT was lost in a callback
    that importlib has for each module."""
    code = IMPORTING.replace("{interrupt}", interrupt)
    command = [sys.executable, "-c", code, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "edgespec: error: interrupted\n")
