"""Fetches one file, resuming where an earlier attempt stopped.

huggingface_hub's own download begins anew after a failure, Ctrl-C or an answer 500. Knows HTTP and
its ranges; it knows no models and no cache layout.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

TIMEOUT_S = 20.0
MAX_FAILURES = 5
"""Consecutive failures without progress before giving up."""
PAUSE_S = 1.0
"""Seconds to wait after the first failure, doubled after each consecutive one."""
_PASSING = {None, 408, 429, *range(500, 600)}
"""Answers after which a retry may succeed; None: no answer."""


@dataclass
class HubFailure(Exception):
    """The newest files could not be fetched, for this reason."""

    reason: str
    advice: str


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

    def run(self, report: Callable[[], None]) -> None:
        """Fetch the missing bytes and move the file to its destination; `report` is called when
        more has come.

        Raises HubFailure for a wrong checksum, and the transport's or the hub's error after
        too many failures. Only one process may run it at a time.
        """
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        with self.partial.open("ab", buffering=0) as file:
            failures, before = 0, -1
            while before < file.tell() < self.size_bytes:
                before = file.tell()
                try:
                    self._append(file, report)
                except (httpx2.TransportError, HfHubHTTPError) as error:
                    failures = 0 if file.tell() > before else failures + 1
                    answer = getattr(getattr(error, "response", None), "status_code", None)
                    if failures > MAX_FAILURES or answer not in _PASSING:
                        raise
                    time.sleep(PAUSE_S * 2 ** max(0, failures - 1))
                    before = -1
        self._check()
        self.partial.replace(self.destination)

    def _append(self, file: RawIOBase, report: Callable[[], None]) -> None:
        """Append the rest of the file, in one request."""
        headers = {**self.headers, "Accept-Encoding": "identity"}
        if done := file.tell():
            headers["Range"] = f"bytes={done}-"
        with get_session().stream(
            "GET", self.url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            if done and response.status_code != httpx2.codes.PARTIAL_CONTENT:
                file.truncate(0)  # the server sends the whole file
            for chunk in response.iter_raw():
                file.write(chunk)
                report()
                if file.tell() > self.size_bytes:
                    return

    def _check(self) -> None:
        """Raise HubFailure for a wrong checksum: the file may have changed between two requests."""
        expected = self.destination.name
        digest = hashlib.sha256()
        if len(expected) != 2 * digest.digest_size:
            digest = hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)
        with self.partial.open("rb") as file:
            digits = hashlib.file_digest(file, lambda: digest).hexdigest()
        if digits != expected:
            self.partial.unlink()
            raise HubFailure(
                f"{self.name} came damaged (its SHA is {digits[:12]}..., not {expected[:12]}...) "
                "and was deleted",
                "fetch it again",
            )
