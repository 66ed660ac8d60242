"""Keeps the messages of answered responses in memory, for requests that go on from them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from edgespec.completions.requests import RequestError


@dataclass(frozen=True, slots=True)
class _Stored:
    previous: str | None
    messages: bytes
    """Messages that this response adds to those of the previous one, as JSON."""


class StoredResponses:
    """Messages by response, of `max_bytes` together: those not asked for longest go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        self._lock = Lock()

    def add(self, identity: str, previous: str | None, messages: Sequence[Any]) -> None:
        """Keep the messages that a response adds to those of the previous one."""
        content = json.dumps(messages, separators=(",", ":")).encode()
        with self._lock:
            self._stored[identity] = _Stored(previous, content)
            self._n_bytes += _size(identity, content)
            while self._n_bytes > self._max_bytes:
                oldest, its = self._stored.popitem(last=False)
                self._n_bytes -= _size(oldest, its.messages)

    def messages(self, identity: str | None) -> list[dict[str, Any]]:
        """The messages up to a response, its answer included; none for None.

        Raises RequestError if the response, or one before it, is not kept any more.
        """
        found: list[_Stored] = []
        with self._lock:
            while identity is not None:
                if identity not in self._stored:
                    raise RequestError(
                        f"no response {identity!r} is kept: this server keeps the latest ones in "
                        "memory, if `store` is not false; send the whole conversation as input",
                        "previous_response_id",
                        "previous_response_not_found",
                    )
                self._stored.move_to_end(identity)
                found.append(self._stored[identity])
                identity = found[-1].previous
        return [message for one in reversed(found) for message in json.loads(one.messages)]


ENTRY_BYTES = 600
"""Memory of an entry besides its id and content."""


def _size(identity: str, content: bytes) -> int:
    return ENTRY_BYTES + len(identity) + len(content)
