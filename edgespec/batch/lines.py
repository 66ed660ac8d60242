"""Parses and formats the lines of OpenAI's batch files. Knows no session and no file."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from edgespec.completions.answers import Answer
from edgespec.completions.refusals import Refusal, decoded

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""Supported endpoints."""
FIELDS = ("custom_id", "method", "url", "body")
MAX_ID_CHARACTERS = 512
ENVELOPE_BYTES = 8 << 10
"""Bytes of a line besides its body."""


class LineError(Exception):
    """A line that is not a valid request; the message says why."""

    def __init__(self, message: str, code: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.custom_id = custom_id


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The request in one line, with its body not validated yet."""

    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The part of an output line that resuming needs."""

    key: str
    """Identifies the request among all lines of the input."""
    status: int
    """HTTP status; 400 for an invalid line."""


def numbered_lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Non-blank lines with their numbers from 1; None for a line of more than `max_bytes`.

    Raises OSError.
    """
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        if len(line) > max_bytes and not line.endswith(b"\n"):
            while (rest := file.readline(max_bytes)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif line.strip():
            yield number, line


def parse_line(line: bytes) -> BatchRequest:
    """The request in a line. Raises LineError."""
    try:
        content = decoded(line, "the line")
    except Refusal as error:
        raise LineError(str(error), "invalid_json") from error
    if not isinstance(content, dict):
        raise LineError(f"the line is not an object with {', '.join(FIELDS)}", "invalid_line")
    name = content.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID_CHARACTERS:
        raise LineError(
            f"custom_id is missing: give each line a text of 1 to {MAX_ID_CHARACTERS} characters "
            "of its own",
            "invalid_line",
        )
    for field in content.keys() - set(FIELDS):
        raise LineError(f"unknown field {field!r}: a line has {', '.join(FIELDS)}", _INVALID, name)
    if content.get("method", "POST") != "POST":
        raise LineError(f"method is {content['method']!r}: it must be POST", _INVALID, name)
    if (url := content.get("url", "missing")) not in URLS:
        raise LineError(f"url is {url}: it must be one of {', '.join(URLS)}", _INVALID, name)
    if not isinstance(content.get("body"), dict):
        raise LineError("body is missing: give the request's object", _INVALID, name)
    if content["body"].get("stream"):
        raise LineError("body.stream: answers are written whole: leave it out", _INVALID, name)
    return BatchRequest(name, url, content["body"])


_INVALID = "invalid_line"


def answer_line(custom_id: str, status: int, body: Answer) -> bytes:
    """The output line of an answered request; `body` may be an error."""
    request_id = body.get("id", f"req_{secrets.token_hex(12)}")
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(custom_id, response, None)


def error_line(number: int, error: LineError) -> bytes:
    """The output line for an invalid input line with this number."""
    details = {"code": error.code, "message": str(error), "line": number}
    return _line(error.custom_id, None, details)


def error_key(number: int, error: LineError) -> str:
    """Key of an invalid input line: its number and its error."""
    return f"{number}:{error.code}:{error}"


def request_key(custom_id: str) -> str:
    return f"id:{custom_id}"


def parse_answer(line: bytes) -> BatchAnswer | None:
    """The answer in an output line; None if it is invalid."""
    try:
        content = json.loads(line)
        error = content["error"]
        if error is not None:
            number, code, message = error["line"], error["code"], error["message"]
            found = BatchAnswer(error_key(int(number), LineError(message, code)), 400)
        else:
            custom_id, status = content["custom_id"], content["response"]["status_code"]
            found = BatchAnswer(request_key(custom_id), int(status))
        found.key.encode()  # half a character is no text
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
    return found


def is_begun_answer(torn: bytes) -> bool:
    """True if `torn` may be the beginning of an output line."""
    return torn.startswith(_OPENING[: len(torn)])


_OPENING = b'{"id": "batch_req_'


def _line(custom_id: str | None, response: Answer | None, error: Answer | None) -> bytes:
    content = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return json.dumps(content, ensure_ascii=False).encode()
