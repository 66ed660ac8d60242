"""What closes several things."""

from __future__ import annotations

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

    with pytest.raises(Broken, match="first") as raised:
        close_all(
            lambda: close("first", breaks=True),
            lambda: close("second"),
            lambda: close("third", breaks=True),
            lambda: close("fourth"),
        )
    assert closed == ["first", "second", "third", "fourth"]
    assert raised.value.__notes__ == ["closing also failed with Broken: third"]


def test_nothing_to_close_is_no_error() -> None:
    close_all()
