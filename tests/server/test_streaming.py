"""Streams: headers at once, comments while there is nothing to send, and their end."""

import asyncio
import contextlib
import json

import httpx
import pytest

from edgespec.server.streaming import COMMENT, EventStream, event, with_comments


async def slow(seconds: float, *events: str):
    for one in events:
        await asyncio.sleep(seconds)
        yield one


def collected(events) -> list[str]:
    async def collect() -> list[str]:
        return [one async for one in events]

    return asyncio.run(collect())


def test_events_pass_in_their_order():
    assert collected(with_comments(slow(0, "a", "b"), 10)) == ["a", "b"]


def test_silence_is_filled_with_comments():
    sent = collected(with_comments(slow(0.1, "a"), 0.03))
    assert sent[0] == COMMENT and sent[-1] == "a"
    assert sent.count("a") == 1


def test_silence_is_filled_with_what_a_protocol_has_for_it():
    sent = collected(with_comments(slow(0.1, "a"), 0.03, lambda: "goes on"))
    assert sent[0] == "goes on" and sent[-1] == "a"


def test_a_comment_is_one_that_clients_ignore():
    assert COMMENT.startswith(":") and COMMENT.endswith("\n\n")


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029", "\x1c"])
def test_an_event_is_one_line_for_clients_that_split_as_python_does(end):
    sent = event({"a": f"b{end}c"})
    assert len(sent.rstrip().splitlines()) == 1
    assert json.loads(sent.removeprefix("data: ")) == {"a": f"b{end}c"}


def test_a_failure_passes():
    async def failing():
        yield "a"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        collected(with_comments(failing(), 10))


def test_who_leaves_ends_the_events():
    ended = []

    async def endless():
        try:
            while True:
                await asyncio.sleep(60)
                yield "a"
        finally:
            ended.append(True)

    async def leave() -> None:
        async def follow() -> None:
            async for _ in with_comments(endless(), 0.01):
                pass

        task = asyncio.ensure_future(follow())
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert ended == [True]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_a_stream_needs_is_let_go_at_its_end(is_cancelled):
    """Even if the client is gone before the first event."""
    released, closings = [], []

    async def serve() -> None:
        stack = contextlib.AsyncExitStack()
        stack.callback(released.append, True)
        stream = EventStream(slow(0, "a"), stack, closings.append)

        async def receive():
            if not is_cancelled:
                await asyncio.sleep(60)
            return {"type": "http.disconnect"}

        async def send(message) -> None:
            await asyncio.sleep(0.01)

        await stream({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
        await asyncio.gather(*closings)

    asyncio.run(serve())
    assert released == [True]


def test_proxies_are_told_not_to_hold_events_back():
    headers = EventStream(slow(0), contextlib.AsyncExitStack(), print).headers
    assert headers["x-accel-buffering"] == "no"
    assert httpx.Headers(headers)["content-type"].startswith("text/event-stream")
