"""Server-sent events: chunks of an answer, and comments while there are none.

Knows the format, and nothing of models.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

COMMENT_S = 5.0
"""Seconds of silence after which a comment is sent, so that nobody on the way gives up."""
COMMENT = ": waiting\n\n"
DONE = "data: [DONE]\n\n"
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from holding events back."""


class EventStream(StreamingResponse):
    """A response of server-sent events, whose headers are sent at once.

    `stack` holds what the events need. It is closed at the end of the response in a task of its
    own, as this one may be cancelled.
    """

    def __init__(
        self,
        events: AsyncGenerator[str],
        stack: AsyncExitStack,
        on_closing: Callable[[asyncio.Future[None]], None],
        has_events: bool = True,
        silence_s: float | None = COMMENT_S,
        waiting: Callable[[], str] = lambda: COMMENT,
    ) -> None:
        """`on_closing` is told the task that closes `stack`; `waiting` gives what is sent in
        silence. Without `has_events` the parts are lines of JSON, between which nothing may
        stand."""
        kind = "text/event-stream" if has_events else "application/x-ndjson"
        told = with_comments(events, silence_s if has_events else None, waiting)
        super().__init__(told, media_type=kind, headers=HEADERS)
        self._stack = stack
        self._on_closing = on_closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            closing = asyncio.ensure_future(self._stack.aclose())
            self._on_closing(closing)


def event(content: Any, name: str | None = None) -> str:
    """An event with `content` as JSON, and the name of its kind if it has one."""
    named = f"event: {name}\n" if name else ""
    # clients split events by str.splitlines, which takes more than line feeds for line ends
    text = _LINE_ENDS.sub(_escaped, json.dumps(content, ensure_ascii=False))
    return f"{named}data: {text}\n\n"


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


async def with_comments(
    events: AsyncGenerator[str],
    silence_s: float | None,
    waiting: Callable[[], str] = lambda: COMMENT,
) -> AsyncIterator[str]:
    """The events, and what `waiting` gives whenever nothing has come for `silence_s` seconds."""
    next_one: asyncio.Future[str | None] | None = None
    try:
        while True:
            next_one = asyncio.ensure_future(_next(events))
            while not (await asyncio.wait({next_one}, timeout=silence_s))[0]:
                yield waiting()
            one = await next_one
            if one is None:
                return
            yield one
    finally:
        if next_one is not None and not next_one.done():
            next_one.cancel()
            with suppress(asyncio.CancelledError):
                await next_one
        await events.aclose()


def _next(events: AsyncIterator[str]) -> Awaitable[str | None]:
    return anext(events, None)
