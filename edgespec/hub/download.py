"""Fetches one file, and goes on where an earlier attempt stopped.

Knows the hub's addresses and HTTP ranges; it knows no models and no cache layout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub import get_session

from edgespec.hub.failures import HubFailure
from edgespec.hub.listing import TIMEOUT_S, Checksum

MOST_FAILURES = 5
"""In a row, none of which brought a byte."""
PAUSE_S = 1.0
"""After the first failure; each further one in a row doubles it."""

_PASSING = {httpx2.codes.REQUEST_TIMEOUT, httpx2.codes.TOO_MANY_REQUESTS}
"""Besides 5xx: answers that may be others a moment later."""


class _Refused(HubFailure):
    """An answer without content."""

    def __init__(self, url: str, status: int) -> None:
        advice = "try again later; what was fetched so far is kept"
        super().__init__(f"{url} answers {status}", advice)
        self.passes = status >= httpx2.codes.INTERNAL_SERVER_ERROR or status in _PASSING


@dataclass(frozen=True, slots=True)
class Download:
    """One file: from where, to where, and what it should be."""

    name: str
    url: str
    headers: Mapping[str, str]
    size_bytes: int
    checksum: Checksum
    partial: Path
    """What was fetched so far; stays when fetching fails."""
    destination: Path

    @property
    def here_bytes(self) -> int:
        """How much of it is here, complete or not."""
        if self.destination.exists():
            return self.size_bytes
        return self.partial.stat().st_size if self.partial.exists() else 0

    def run(
        self, report: Callable[[int], None], pause: Callable[[float], None] = time.sleep
    ) -> None:
        """Fetch what is missing and put the file in its place; `report` hears how much is here.

        Raises HubFailure for a file that is not what it should be, and what the transport raises
        once it has failed too often. One process at a time.
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
                    if isinstance(error, _Refused) and not error.passes:
                        raise
                    failures = 0 if file.tell() > before else failures + 1
                    if failures > MOST_FAILURES:
                        raise
                    pause(PAUSE_S * 2 ** max(0, failures - 1))
            found = file.tell()
        if found != self.size_bytes:
            self.partial.unlink()
            raise HubFailure(
                f"{self.name} should have {self.size_bytes:,} bytes and came with {found:,}",
                "try again later",
            )
        self._check()
        self.partial.replace(self.destination)

    def _append(self, file: BinaryIO, report: Callable[[int], None]) -> None:
        """One request for the rest."""
        headers = {**self.headers, "Accept-Encoding": "identity"}
        if done := file.tell():
            headers["Range"] = f"bytes={done}-"
        with get_session().stream(
            "GET", self.url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True
        ) as response:
            if response.is_error:
                raise _Refused(self.url, response.status_code)
            if done and response.status_code != httpx2.codes.PARTIAL_CONTENT:
                file.truncate(0)  # the server began anew
            for chunk in response.iter_raw():
                file.write(chunk)
                report(file.tell())
                if file.tell() > self.size_bytes:
                    return

    def _check(self) -> None:
        """A file that went on after days, or over a bad line, may not be what was published."""
        found, wanted = self.checksum.of(self.partial), self.checksum.digits
        if found != wanted:
            self.partial.unlink()
            raise HubFailure(
                f"{self.name} came damaged (its SHA is {found[:12]}..., not {wanted[:12]}...) and "
                "was dropped",
                "fetch it again",
            )
