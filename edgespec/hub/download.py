"""Fetches one file, resuming where an earlier attempt stopped.

Knows HTTP and its ranges; it knows no models and no cache layout.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub import get_session

from edgespec.hub.listing import SHA256_DIGITS, TIMEOUT_S
from edgespec.hub.translated_errors import HubFailure

MAX_FAILURES = 5
"""Consecutive failures without progress before giving up."""
PAUSE_S = 1.0
"""Seconds to wait after the first failure, doubled after each consecutive one."""

_TRANSIENT = {httpx2.codes.REQUEST_TIMEOUT, httpx2.codes.TOO_MANY_REQUESTS}
"""Status codes besides 5xx after which a retry may succeed."""


class _Refused(HubFailure):
    """The server answered with an error status."""

    def __init__(self, url: str, status: int) -> None:
        advice = "try again later; the part that was fetched is kept"
        super().__init__(f"{url} answers {status}", advice)
        self.is_transient = status >= httpx2.codes.INTERNAL_SERVER_ERROR or status in _TRANSIENT


@dataclass(frozen=True, slots=True)
class Download:
    """One file: its URL, expected size and destination, whose name is the checksum."""

    name: str
    url: str
    headers: Mapping[str, str]
    size_bytes: int
    destination: Path

    @property
    def partial(self) -> Path:
        """File with the bytes fetched so far, which is kept when fetching fails."""
        return self.destination.with_name(f"{self.destination.name}.edgespec.incomplete")

    @property
    def here_bytes(self) -> int:
        """Bytes of the file fetched so far."""
        if self.destination.exists():
            return self.size_bytes
        return self.partial.stat().st_size if self.partial.exists() else 0

    def run(
        self, report: Callable[[int], None], pause: Callable[[float], None] = time.sleep
    ) -> None:
        """Fetch the missing bytes and move the file to its destination.

        `report` is called with the bytes fetched so far.

        Raises HubFailure for a wrong size or checksum, and the transport's error after too many
        failures. Only one process may run it at a time.
        """
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        with self.partial.open("ab") as file:
            if file.tell() > self.size_bytes:
                file.truncate(0)
            failures = 0
            while file.tell() < self.size_bytes:
                before = file.tell()
                try:
                    self._append(file, report)
                    if file.tell() == before:
                        break
                except (httpx2.TransportError, _Refused) as error:
                    if isinstance(error, _Refused) and not error.is_transient:
                        raise
                    failures = 0 if file.tell() > before else failures + 1
                    if failures > MAX_FAILURES:
                        raise
                    pause(PAUSE_S * 2 ** max(0, failures - 1))
            n_bytes = file.tell()
        if n_bytes != self.size_bytes:
            self.partial.unlink()
            raise HubFailure(
                f"{self.name} should have {self.size_bytes:,} bytes and came with {n_bytes:,}",
                "try again later",
            )
        self._check()
        self.partial.replace(self.destination)

    def _append(self, file: BinaryIO, report: Callable[[int], None]) -> None:
        """Append the rest of the file, in one request."""
        headers = {**self.headers, "Accept-Encoding": "identity"}
        if done := file.tell():
            headers["Range"] = f"bytes={done}-"
        with get_session().stream(
            "GET", self.url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True
        ) as response:
            if response.is_error:
                raise _Refused(self.url, response.status_code)
            if done and response.status_code != httpx2.codes.PARTIAL_CONTENT:
                file.truncate(0)  # the server sends the whole file
            for chunk in response.iter_raw():
                file.write(chunk)
                report(file.tell())
                if file.tell() > self.size_bytes:
                    return

    def _check(self) -> None:
        """Raise HubFailure for a wrong checksum: the file may have changed between two requests."""
        expected = self.destination.name
        with self.partial.open("rb") as file:
            if len(expected) == SHA256_DIGITS:
                digits = hashlib.file_digest(file, "sha256").hexdigest()
            else:
                blob = hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)
                digits = hashlib.file_digest(file, lambda: blob).hexdigest()
        if digits != expected:
            self.partial.unlink()
            raise HubFailure(
                f"{self.name} came damaged (its SHA is {digits[:12]}..., not {expected[:12]}...) "
                "and was deleted",
                "fetch it again",
            )
