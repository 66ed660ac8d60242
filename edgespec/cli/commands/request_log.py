"""The log of `edgespec serve` on stderr: a line for each request, tracebacks of failures."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from edgespec.cli.console import Console
from edgespec.server.access_log import AccessLog, AnsweredRequest


class RequestLog(AccessLog):
    """Writes requests and failures to a console."""

    def __init__(self, console: Console, is_json: bool = False, quiet: bool = False) -> None:
        """With `quiet`, only failures are written."""
        self._console = console
        self._is_json = is_json
        self._quiet = quiet

    def request(self, answered: AnsweredRequest) -> None:
        if self._quiet:
            return
        if self._is_json:
            self._write(**asdict(answered) | {"seconds": round(answered.seconds, 6)})
            return
        tokens = ""
        if answered.prompt_tokens is not None:
            tokens = f" {answered.prompt_tokens} + {answered.completion_tokens} tokens"
        self._console.log(
            f"{_now()} {answered.id} {answered.method} {answered.route} {answered.status}"
            f"{tokens} {answered.seconds:.3f} s"
        )

    def failure(self, request_id: str, traceback: str) -> None:
        if self._is_json:
            self._write(id=request_id, traceback=traceback)
        else:
            self._console.log(f"{_now()} {request_id} failed\n{traceback.rstrip()}")

    def _write(self, **fields: Any) -> None:
        self._console.log(json.dumps({"time": _now()} | fields, ensure_ascii=False))


def _now() -> str:
    """The local time with its offset, in ISO 8601."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
