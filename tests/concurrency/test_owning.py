"""Closing several things at once, and closing in a fork of the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edgespec.concurrency.owning import close_all


class Broken(Exception):
    pass


def test_all_are_closed_in_order_whatever_one_raises() -> None:
    closed = []

    def close(name: str, breaks: bool = False) -> None:
        closed.append(name)
        if breaks:
            raise Broken(name)

    with pytest.raises(Broken, match="third") as raised:
        close_all(
            lambda: close("first", breaks=True),
            lambda: close("second"),
            lambda: close("third", breaks=True),
            lambda: close("fourth"),
        )
    assert closed == ["first", "second", "third", "fourth"]
    assert str(raised.value.__context__) == "first"


FORK = """
import os
import edgespec
from edgespec.models.embedded import embedded_pair

pair = embedded_pair()
settings = edgespec.LoadSettings(model=pair.target, draft=pair.draft, ctx_size=64)
with edgespec.load(settings) as session:
    started = session.stream("def", max_tokens=9)
    next(started)
    if child := os.fork():
        os.waitpid(child, 0)
        print(len(started.result.tokens) if list(started) else 0)
    else:
        for use in (lambda: session.generate("def", max_tokens=2), lambda: next(started)):
            try:
                use()
            except edgespec.UsageError as error:
                print(error, flush=True)
        started.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_is_told_that_the_session_is_its_parent_s_which_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], check=False, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    *refused, n_tokens = done.stdout.decode().splitlines()
    assert len(refused) == 2
    assert all("is a fork without its threads: load one here" in line for line in refused)
    assert n_tokens == "9"
