"""Streams: headers at once, comments while there is nothing to send, and their end."""

import asyncio
import contextlib
import json
from types import SimpleNamespace

import pytest

from edgespec.server import answering
from edgespec.server.answering import COMMENT, Door, StreamedAnswer, event


def streamed(*parts: str | None, pause_s: float = 0, waiting: str = COMMENT) -> StreamedAnswer:
    """A stream of parts, which ends with None, and otherwise has no end."""

    async def write(put) -> None:
        try:
            for one in parts:
                await asyncio.sleep(pause_s)
                put(one)
            await asyncio.sleep(60)
        finally:
            ended.append(parts)

    stack = contextlib.AsyncExitStack()
    stack.callback(lambda: ended.append("stack"))
    door = Door(lambda *_: None)
    one = SimpleNamespace(write=write, stack=stack, door=door, waiting=lambda: waiting)
    return StreamedAnswer(one)


ended: list[object] = []


def sent(stream: StreamedAnswer, leaves: bool = False) -> list[str]:
    """Parts that a client got, who may leave after the first part."""
    got: list[str] = []
    gone = asyncio.Event()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message) -> None:
        got.append(message.get("body", b"").decode())
        if leaves:
            gone.set()

    ended.clear()
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    asyncio.run(stream(scope, receive, send))
    return [one for one in got if one]


def test_events_pass_in_their_order():
    assert sent(streamed("a", "b", None)) == ["a", "b"]


@pytest.mark.parametrize("waiting", [COMMENT, "what a protocol has for it"])
def test_silence_is_filled(waiting, monkeypatch):
    monkeypatch.setattr(answering, "SILENCE_S", 0.03)
    got = sent(streamed("a", None, pause_s=0.1, waiting=waiting))
    assert got[0] == waiting and got.count("a") == 1


def test_a_comment_is_one_that_clients_ignore():
    assert COMMENT.startswith(":") and COMMENT.endswith("\n\n")


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029", "\x1c"])
def test_an_event_is_one_line_for_clients_that_split_as_python_does(end):
    told = event({"a": f"b{end}c"})
    assert len(told.rstrip().splitlines()) == 1
    assert json.loads(told.removeprefix("data: ")) == {"a": f"b{end}c"}


@pytest.mark.parametrize("leaves", [False, True])
def test_what_a_stream_needs_is_let_go_at_its_end(leaves):
    """Even if the client is gone before the first event."""
    parts = () if leaves else ("a", None)
    sent(streamed(*parts), leaves)
    assert ended == [parts, "stack"]


def test_proxies_are_told_not_to_hold_events_back():
    headers = streamed().headers
    assert headers["x-accel-buffering"] == "no"
    assert headers["content-type"].startswith("text/event-stream")
