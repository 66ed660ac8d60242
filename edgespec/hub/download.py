"""Fetches one file, and goes on where an earlier attempt stopped.

Knows the hub's addresses and HTTP ranges; it knows no models and no cache layout.
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

from edgespec.errors import FetchError

TIMEOUT_S = 20.0
MOST_FAILURES = 5
"""In a row, none of which brought a byte."""
PAUSE_S = 1.0

_SHA256_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Download:
    """One file: from where, to where, and what it should be."""

    name: str
    url: str
    headers: Mapping[str, str]
    size_bytes: int
    sha256: str | None
    """None for small files, whose checksum a hub does not tell."""
    partial: Path
    """What was fetched so far; stays when fetching fails."""
    destination: Path

    @property
    def partial_bytes(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    def run(
        self, report: Callable[[int], None], pause: Callable[[float], None] = time.sleep
    ) -> None:
        """Fetch what is missing and put the file in its place; `report` hears of new bytes.

        Raises FetchError for a file that is not what it should be, and what the transport raises
        once it has failed too often.
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
                except httpx2.TransportError:
                    failures = 0 if file.tell() > before else failures + 1
                    if failures > MOST_FAILURES:
                        raise
                    pause(PAUSE_S)
                if file.tell() == before and not failures:
                    break
            found = file.tell()
        if found != self.size_bytes:
            self.partial.unlink()
            raise FetchError(
                f"{self.name} should have {self.size_bytes:,} bytes and came with {found:,}: "
                "try again later"
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
                raise FetchError(
                    f"{self.url} answers {response.status_code}: try again later; what was "
                    "fetched so far is kept"
                )
            if done and response.status_code != httpx2.codes.PARTIAL_CONTENT:
                file.truncate(0)  # the server began anew
                report(-done)
            for chunk in response.iter_raw():
                file.write(chunk)
                report(len(chunk))
                if file.tell() > self.size_bytes:
                    return

    def _check(self) -> None:
        """A file that went on after days, or over a bad line, may not be what was published."""
        if self.sha256 is None or len(self.sha256) != _SHA256_LENGTH:
            return
        with self.partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.sha256:
            self.partial.unlink()
            raise FetchError(
                f"{self.name} came damaged (its SHA-256 is {digest[:12]}..., not "
                f"{self.sha256[:12]}...) and was dropped: fetch it again"
            )
